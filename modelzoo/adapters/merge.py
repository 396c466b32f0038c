"""Putting a change of low rank into the weights that it changes."""

from typing import Any

import torch
from torch import nn

from modelzoo.adapters.attach import adapter_of, low_rank_parts, remove_adapter
from modelzoo.adapters.lora import LowRankTable
from modelzoo.adapters.quantized import is_quantized
from modelzoo.adapters.untie import is_tied, untie
from modelzoo.errors import ConfigError
from modelzoo.sharded import is_sharded

__all__ = ["merge_adapter"]

_NO_CHANGES = {
    "prompt": "virtual tokens stand before every text",
    "prefix": "keys and values stand before those of every attention",
}


@torch.no_grad()
def merge_adapter(model: nn.Module, *, untied: bool = False) -> None:
    """Put a model's adapter into its weights, in place: a plain model of the same outputs, all of it trainable again.

    Sums are taken in float32 and rounded once to the weights' own dtype.

    Args:
        model: With an adapter, plain (not sharded).
        untied: Whether a table that scores the vocabulary as well becomes two, of which the one that is looked up changes
            (tie_word_embeddings false).

    Raises:
        ConfigError: It has none, is sharded, is no change of weights (prompt, prefix), or a table changes that scores the
            vocabulary as well: an adapter changes what is looked up alone, and one table cannot hold both. With `untied`, nothing
            is tied.
    """
    config = adapter_of(model)
    if config is None:
        raise ConfigError(f"{type(model).__name__} has no adapter to merge")
    if config.method in _NO_CHANGES:
        what = f"{_NO_CHANGES[config.method]} and are no change of a weight, so there is nothing to merge"
        raise ConfigError(f"adapter.method={config.method}: {what}; keep the adapter beside its base")
    if is_quantized(model):
        raise ConfigError(
            f"{type(model).__name__}: its base is stored in fewer bits (adapter.base); save the adapter and merge it into the "
            "floats of the base: modelzoo export RUN DST --to merged"
        )
    if any(is_sharded(parameter) for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} is sharded; save the adapter, load it on one process and merge it there")
    parts = dict(low_rank_parts(model))
    if untied:
        untie(model)
    tables = [name for name, part in parts.items() if isinstance(part, LowRankTable) and name.rpartition(".")[2] == "token"]
    if tables and is_tied(model):
        raise ConfigError(
            f"{tables[0]}: the table also scores the vocabulary (tie_word_embeddings), and its change holds for what is looked up "
            "alone; write two tables with --untie (untied=True in Python), or keep the adapter beside its base"
        )
    for name, part in parts.items():
        module: Any = model.get_submodule(name)
        module.weight.data = part.merged(module.weight)
    remove_adapter(model)
