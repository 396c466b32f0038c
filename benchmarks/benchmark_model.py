"""The GPT-2 of the benchmarks about memory: 8,192 words, no dropout, heads of 64."""

from typing import Any

VOCABULARY = 8192


def gpt_config(hidden: int, layers: int, length: int = 128) -> Any:
    """Return its config."""
    from modelzoo import GPT2Config

    return GPT2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        intermediate_size=4 * hidden,
        max_positions=length,
        hidden_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=None,
    )


def sizes_of_gpt(hidden: int, layers: int, length: int = 128) -> Any:
    """Return the sizes of its units on one process, without its values."""
    import torch

    from modelzoo import GPT2
    from modelzoo.config import ParallelConfig
    from modelzoo.runtime import connect, prepare
    from modelzoo.runtime.tiers import sizes_of

    with connect(device="cpu") as world:
        with torch.device("meta"):
            model = GPT2(gpt_config(hidden, layers, length), "causal_lm")
        prepare(model, world, ParallelConfig(), for_tiers=True)
        return sizes_of(model)
