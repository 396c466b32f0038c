"""What a step takes beside the model's values: activations, scores and the program itself, as an upper estimate for the tiers."""

import psutil

from modelzoo.config import RunSettings
from modelzoo.config.parallel import recompute_period
from modelzoo.models.model import ModelConfig
from modelzoo.runtime import World
from modelzoo.training.step import Dataset

__all__ = ["activation_bytes", "reserved_bytes"]

LM_CHUNK_TOKENS = 512
"""Tokens whose scores over the vocabulary exist at a time while training a language model."""


def reserved_bytes(settings: RunSettings, config: ModelConfig, dataset: Dataset, world: World) -> int:
    """Return the bytes that the tiers must leave free on a process: what it takes already, and its largest micro-batch.

    Args:
        settings: Of the run.
        config: Of the model.
        dataset: Whose lengths bound a micro-batch.
        world: Between whose processes a batch is shared.
    """
    longest = sorted(dataset.lengths, reverse=True)
    train = settings.train
    if train.batch_tokens is not None:
        tokens = max(-(-train.batch_tokens // world.data_size), longest[0])
    else:
        assert train.batch_size is not None
        tokens = sum(longest[: -(-train.batch_size // world.data_size)])
    if train.micro_batch_size is not None:
        tokens = min(tokens, sum(longest[: train.micro_batch_size]))
    return psutil.Process().memory_info().rss + activation_bytes(config, tokens, settings.parallel.recompute)


def activation_bytes(config: ModelConfig, tokens: int, recompute: str) -> int:
    """Return the float32 bytes that a forward keeps for its backward, scores included.

    Counted from what one layer saves: inputs of both norms, of six maps and of the activation, and the attention's operands:
    10 D + 3 F values a token (Korthikanti et al., 2022, section 4.1, without dropout masks and with fused attention).

    Args:
        config: Its hidden_size, num_layers and intermediate_size, where it has them.
        tokens: Of a micro-batch.
        recompute: As `ParallelConfig.recompute`.
    """
    values = config.values()
    hidden = int(values.get("hidden_size", 0))
    inner = int(values.get("intermediate_size", 4 * hidden))
    layers = int(values.get("num_layers", 1)) + int(values.get("num_decoder_layers") or 0)
    layer = 4 * tokens * (10 * hidden + 3 * inner)
    period = recompute_period(recompute)
    recomputed = layers // period if period else 0
    # a layer that is computed again keeps its input, and one of them is whole at a time
    kept = (layers - recomputed) * layer + recomputed * 4 * tokens * hidden + (layer if recomputed else 0)
    scores = 2 * 4 * min(tokens, LM_CHUNK_TOKENS) * config.vocab_size
    return kept + scores
