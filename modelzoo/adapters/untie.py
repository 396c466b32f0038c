"""Giving a model whose token table also scores the vocabulary a second table for that, so that each can change alone."""

import dataclasses
from typing import Any

import torch
from torch import nn

from modelzoo.errors import ConfigError
from modelzoo.layers import skip_initialization

__all__ = ["is_tied", "untie"]

_SCORING = ("causal_lm", "seq2seq_lm", "masked_lm")


def is_tied(model: Any) -> bool:
    """Return whether the token table of a model of the zoo also scores the vocabulary."""
    return bool(model.config.values().get("tie_word_embeddings", False)) and model.task in _SCORING


@torch.no_grad()
def untie(model: Any) -> None:
    """Give a model of the zoo a table of its own for the scores, a copy of the token table, in place; outputs stay as they are.

    Args:
        model: Plain, with its values.

    Raises:
        ConfigError: Its tables are two already, or its family has no form with two.
    """
    name = type(model).__name__
    if not is_tied(model):
        raise ConfigError(f"{name} for {model.task}: no table looks up and scores, so there is nothing to untie; leave untie out")
    try:
        config = dataclasses.replace(model.config, tie_word_embeddings=False)
        with torch.device("meta"), skip_initialization():
            other = type(model)(config, model.task)
    except ConfigError as error:
        raise ConfigError(f"{name}: its family has no form with two tables: {error}") from error
    shapes = {key: tuple(each.shape) for key, each in other.named_parameters()}
    ours = {key for key, _ in model.named_parameters()}
    new = [key for key in shapes if key not in ours]
    table = next(each.weight for key, each in model.named_modules() if key.rpartition(".")[2] == "token")
    if len(new) != 1 or shapes[new[0]] != tuple(table.shape):
        raise ConfigError(
            f"{name}: its family has no form with two tables of {tuple(table.shape)}; keep the adapter beside its base"
        )
    place = new[0].removesuffix(".weight")
    head: Any = other.get_submodule(place)
    head.weight = nn.Parameter(table.detach().clone())
    parent, _, last = place.rpartition(".")
    setattr(model.get_submodule(parent), last, head.train(model.training))
    model.config = config
