"""Decoding speed: modelzoo against transformers' generate, greedy, random weights, float32.

    python benchmarks/decode.py [--model gpt2|llama-135m] [--batch 1] [--prompt 32] [--tokens 64] [--rounds 3]
    python benchmarks/decode.py --model gpt2 --batch 8

`gpt2` has GPT-2-small's sizes, `llama-135m` those of SmolLM2-135M. Both sides hold the same weights, read the same prompts and
write the same number of tokens; a checksum over the tokens shows that they are equal. The first call is not counted. `modelzoo`
packs its weights in every call, `held` once for all of them, `plain` is modelzoo without prepacked weights; `read` is the speed at
which this machine reads memory, which bounds writing at batch 1. The weights are drawn once and kept in the system's folder for
temporary files.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sides

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "llama-135m": (
        "llama",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
            "tie_word_embeddings": True,
        },
    ),
}


def _folder(options: argparse.Namespace) -> Path:
    """Return where the model is saved, so that both sides load the same weights and neither holds the other's."""
    return Path(tempfile.gettempdir()) / "modelzoo-decode" / options.model


def _save(options: argparse.Namespace) -> None:
    """Draw and save a model, once a machine; its weights are wide enough that tokens vary."""
    import torch
    import transformers

    family, sizes = SIZES[options.model]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.06)
    model.save_pretrained(_folder(options))


def _prompts(options: argparse.Namespace) -> Any:
    import torch

    return torch.randint(10, 40000, (options.batch, options.prompt), generator=torch.Generator().manual_seed(1))


def _figures(options: argparse.Namespace, write: Callable[[int], Any], parameters: int) -> sides.Figures:
    """Time whole calls, the prompt's pass included, after a short one that warms up."""
    write(4)
    times = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        sequences = write(options.tokens)
        times.append(time.perf_counter() - start)
    tokens = options.batch * options.tokens / statistics.median(times)
    checksum = float((sequences * (1 + sequences.new_tensor(range(sequences.shape[1])))).sum() % 1_000_003)
    read_gb_s = 4 * parameters * tokens / options.batch / 1e9
    return {"tokens_s": tokens, "read_gb_s": read_gb_s, "peak_mib": sides.peak_rss() / 2**20, "checksum": checksum}


def _modelzoo(options: argparse.Namespace, *, prepack: bool = True) -> sides.Figures:
    from modelzoo import from_pretrained, generate

    model, prompts = from_pretrained(_folder(options)), _prompts(options)

    def write(count: int) -> Any:
        return generate(model, prompts, max_new_tokens=count, eos_token_id=(), prepack=prepack).sequences

    return _figures(options, write, sum(parameter.numel() for parameter in model.parameters()))


def _held(options: argparse.Namespace) -> sides.Figures:
    """Pack the weights once, in the call that is not counted."""
    from modelzoo import from_pretrained, generate
    from modelzoo.generation import prepacked

    model, prompts = from_pretrained(_folder(options)), _prompts(options)

    def write(count: int) -> Any:
        return generate(model, prompts, max_new_tokens=count, eos_token_id=(), prepack=True).sequences

    with prepacked(model, options.batch):
        return _figures(options, write, sum(parameter.numel() for parameter in model.parameters()))


def _plain(options: argparse.Namespace) -> sides.Figures:
    return _modelzoo(options, prepack=False)


def _transformers(options: argparse.Namespace) -> sides.Figures:
    import torch
    import transformers

    model, prompts = transformers.AutoModelForCausalLM.from_pretrained(_folder(options)).eval(), _prompts(options)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def write(count: int) -> Any:
        return model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, do_sample=False)

    return _figures(options, write, sum(parameter.numel() for parameter in model.parameters()))


def _read(options: argparse.Namespace) -> sides.Figures:
    """Read memory as fast as this machine does: sums over a buffer that no cache holds."""
    import torch

    buffer = torch.ones(1 << 27)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - start)
    return {"tokens_s": 0.0, "read_gb_s": buffer.numel() * 4 / min(times) / 1e9, "peak_mib": 0.0, "checksum": 0.0}


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    lines = [f"{name:<13} {sides.median(rounds, 'tokens_s'):8.1f} tokens/s" for name, rounds in figures.items() if name != "read"]
    sums = {one["checksum"] for name, rounds in figures.items() if name != "read" for one in rounds}
    return [
        *lines,
        f"modelzoo / transformers                 {sides.ratio(figures, 'tokens_s', 'modelzoo', 'transformers')}",
        f"held / transformers                     {sides.ratio(figures, 'tokens_s', 'held', 'transformers')}",
        f"modelzoo / modelzoo without prepacking  {sides.ratio(figures, 'tokens_s', 'modelzoo', 'plain')}",
        f"weights read (held) / memory's own speed {sides.ratio(figures, 'read_gb_s', 'held', 'read')}",
        f"peak memory, modelzoo / transformers    {sides.ratio(figures, 'peak_mib', 'modelzoo', 'transformers')}",
        f"tokens of all sides and rounds are {'equal' if len(sums) == 1 else 'NOT equal'}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="gpt2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that are written")
    parser.add_argument("--repeats", type=int, default=3, help="calls in one process, of which the median counts")
    if "--side" not in sys.argv and not (_folder(parser.parse_known_args()[0]) / "config.json").exists():
        _save(parser.parse_known_args()[0])
    named = {"modelzoo": _modelzoo, "held": _held, "plain": _plain, "transformers": _transformers, "read": _read}
    sides.main(named, parser, _report)
