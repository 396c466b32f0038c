"""Prompts of any form as one batch of ids, padded on the left."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from modelzoo.data import Tokenizer
from modelzoo.data.cpm_bee_trees import Tree
from modelzoo.errors import DataError
from modelzoo.generation.built_prompts import built_prompts
from modelzoo.generation.prompt_batch import Prompts
from modelzoo.generation.special_ids import SpecialIds
from modelzoo.models.inputs import check_ids, check_left_padded, check_shape
from modelzoo.models.model import Model

__all__ = ["Prompts", "PromptsGiven", "read_prompts"]

PromptsGiven = Tensor | str | Tree | Sequence[str] | Sequence[Tree] | Sequence[Sequence[int]] | Prompts
"""A text, texts, (B, T) ids, or lists of ids of any lengths; for CPM-Bee also trees of texts; or prompts that are built already."""


def read_prompts(
    model: Model, given: PromptsGiven, attention_mask: Tensor | None, tokenizer: Tokenizer | None, special: SpecialIds
) -> Prompts:
    """Return the prompts as one batch on the model's device.

    Args:
        model: Which will read them.
        given: As `PromptsGiven`. Texts get the tokenizer's special tokens.
        attention_mask: (B, T), non-zero where there is a token; with (B, T) ids alone.
        tokenizer: For texts.
        special: The padding id marks padding in ids that come without a mask, unless it also ends texts.

    Raises:
        DataError: There is no prompt, one is empty, an id is out of range, or padding stands after a token that the model would
            continue.
    """
    if isinstance(given, Prompts):
        return given.to(next(model.parameters()).device)
    if isinstance(given, Tensor):
        check_ids("input_ids", given, model.config.vocab_size, "vocab_size")
        ids, mask = given, attention_mask
        if mask is None:
            mask = _mask_of(ids, special)
        else:
            check_shape("attention_mask", mask, ids)
            mask = mask.bool()
    else:
        if attention_mask is not None:
            raise DataError("attention_mask was given with texts or lists, which are padded here; leave it out")
        items = _items(given)
        if tokenizer is not None and (built := built_prompts(model, items, tokenizer)) is not None:
            check_ids("input_ids", built.ids, model.config.vocab_size, "vocab_size")
            return built.to(next(model.parameters()).device)
        ids, mask = _padded(_rows(items, tokenizer), special.pad)
        check_ids("input_ids", ids, model.config.vocab_size, "vocab_size")
    mask = None if mask is None or bool(mask.all()) else mask
    if mask is not None and not bool(mask.any(1).all()):
        raise DataError(f"attention_mask: row {int((~mask.any(1)).nonzero()[0])} has no token; give each prompt at least one")
    if model.task == "causal_lm":
        _check_ends(ids, mask, special, is_marked=attention_mask is not None or not isinstance(given, Tensor))
    return Prompts(ids, mask).to(next(model.parameters()).device)


def _mask_of(ids: Tensor, special: SpecialIds) -> Tensor | None:
    """Return the mask that padding ids imply; an end token says nothing, since a text may hold it."""
    if special.known_pad is None or special.known_pad in special.end:
        return None
    return ids != special.known_pad


def _check_ends(ids: Tensor, mask: Tensor | None, special: SpecialIds, *, is_marked: bool) -> None:
    """Refuse prompts that a continuation would not follow directly."""
    if mask is not None:
        check_left_padded(mask)
    if is_marked or special.pad not in special.end or len(ids) == 1:
        return
    for row, last in enumerate(ids[:, -1].tolist()):
        if last in special.end and bool((ids[row] != last).any()):
            raise DataError(
                f"input_ids: row {row} ends with {last}, which ends a text and also pads, and a continuation would follow it; pad "
                "prompts on the left, or give an attention_mask if it is a token of the prompt"
            )


def _items(given: str | Tree | Sequence[str] | Sequence[Tree] | Sequence[Sequence[int]]) -> list[Any]:
    """Return the prompts one by one, all of one kind."""
    items = [given] if isinstance(given, str | Mapping) else list(given)
    if not items:
        raise DataError("there is no prompt; give at least one text, or one row of ids")
    kinds = {next((kind for kind in (str, Mapping) if isinstance(item, kind)), list) for item in items}
    if len(kinds) > 1:
        names = {str: "texts", Mapping: "trees", list: "ids"}
        raise DataError(f"prompts are {' and '.join(name for kind, name in names.items() if kind in kinds)} mixed; give one kind")
    return items


def _rows(items: list[Any], tokenizer: Tokenizer | None) -> list[list[int]]:
    """Return the ids of each prompt."""
    texts = [item for item in items if isinstance(item, str)]
    if texts:
        assert tokenizer is not None
        rows = [encoding.input_ids for encoding in tokenizer.encode(texts)]
    else:
        rows = [_list_of_ids(row, item) for row, item in enumerate(items)]
    for row, ids in enumerate(rows):
        if not ids:
            what = f"the text {items[row]!r}" if texts else "the list"
            raise DataError(f"prompt {row}: {what} has no token; give it at least one, as the id that begins a text")
    return rows


def _list_of_ids(row: int, item: object) -> list[int]:
    """Return one list of ids.

    Raises:
        DataError: It is something else.
    """
    if not isinstance(item, Sequence) or any(not isinstance(each, int) or isinstance(each, bool) for each in item):
        shown = "an integer, so [[...]] is meant?" if isinstance(item, int) else repr(item)[:60]
        raise DataError(f"prompt {row}: expected a text or a list of ids, found {shown}")
    return list(item)


def _padded(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Return (B, T) ids and mask with padding on the left."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(width) >= width - lengths.unsqueeze(1)
