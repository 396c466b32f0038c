"""Samples to tensors, and the checks that turn an index out of range into a message."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelzoo.data.masking import IGNORED
from modelzoo.errors import DataError

if TYPE_CHECKING:  # torch takes a second to import, and reading data does not need it
    from torch import Tensor

__all__ = ["check_batch", "collate", "count_targets"]

_PADDING = {"token_type_ids": 0, "labels": IGNORED, "decoder_attention_mask": 0}


def collate(items: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, "Tensor"]:
    """Pad samples on the right to the longest of them.

    Args:
        items: Samples of one data set, as `Samples.item` returns them; at least one.
        pad_id: Id of the padding. Attention goes by length, so a token of the text may have the same id.

    Returns:
        input_ids, attention_mask and, where the samples have them, token_type_ids: (B, T) int64, or (B, C, T) for samples of up to
        C choices. labels: (B,) int64, or (B, T) padded with -100; a decoder's are of their own width, with decoder_attention_mask.
        start_positions and end_positions: (B,). Samples of images give pixel_values: (B, channels, height, width) float.

    Raises:
        DataError: If there is no sample, or one has other fields than the first.
    """
    import torch

    if not items:
        raise DataError("expected at least one sample to collate, found none; skip the forward of an empty share")
    fields = list(items[0])
    for row, item in enumerate(items):
        if list(item) != fields:
            raise DataError(f"sample {row} of the batch: expected the fields {', '.join(fields)}, found {', '.join(item)}")
    batch: dict[str, Tensor] = {}
    for name in fields:
        values = [item[name] for item in items]
        if name == "pixel_values":
            batch[name] = torch.stack(values)
            continue
        padding = pad_id if name == "input_ids" else _PADDING.get(name, 0)
        batch[name] = torch.tensor(_padded(values, padding), dtype=torch.int64)
        if name == "input_ids":
            batch["attention_mask"] = torch.tensor(_padded(_ones(values), 0), dtype=torch.int64)
    return batch


def _padded(values: list[Any], padding: int) -> list[Any]:
    """Return lists, or lists of lists, filled up to equal lengths; numbers as they are."""
    if not isinstance(values[0], list):
        return values
    longest = max(map(len, values))
    if not isinstance(values[0][0], list):
        return [[*value, *[padding] * (longest - len(value))] for value in values]
    rows = _padded([row for value in values for row in value], padding)
    blank, found, start = [padding] * len(rows[0]), [], 0
    for value in values:
        found.append([*rows[start : start + len(value)], *[blank] * (longest - len(value))])
        start += len(value)
    return found


def _ones(values: list[Any]) -> list[Any]:
    return [_ones(value) if isinstance(value, list) else 1 for value in values]


def count_targets(batch: Mapping[str, "Tensor"]) -> int:
    """Return the supervised targets of a batch: labels that are not -100, or questions."""
    if "labels" in batch:
        return int((batch["labels"] != IGNORED).sum())
    return len(batch["start_positions"]) if "start_positions" in batch else 0


def check_batch(
    batch: Mapping[str, "Tensor"],
    vocab_size: int,
    max_length: int | None = None,
    num_labels: int | None = None,
    type_vocab_size: int | None = None,
) -> None:
    """Check that a batch fits a model, before an index out of range ends in a bare IndexError or a device assert.

    Args:
        batch: Tensors as `collate` returns them.
        vocab_size: Rows of the embedding.
        max_length: Tokens that the model's positions allow (RoBERTa: positions - padding_idx - 1).
        num_labels: Labels of the head; the vocabulary size for masked_lm.
        type_vocab_size: Token types of the model.

    Raises:
        DataError: If something does not fit; it names the field, the row and position (counted from 0), the value and the limit.
    """
    ids = batch["input_ids"]
    _check_form("input_ids", ids)
    length = ids.shape[1]
    if max_length is not None and length > max_length:
        raise DataError(f"input_ids: {length} tokens, limit {max_length}; lower data.max_length")
    _check_range("input_ids", ids, vocab_size, "vocab_size", "use the checkpoint's own tokenizer")
    types = batch.get("token_type_ids")
    if types is not None:
        _check_form("token_type_ids", types)
        action = "leave token_type_ids out: this model has one type" if type_vocab_size == 1 else "correct the token types"
        _check_range("token_type_ids", types, type_vocab_size, "type_vocab_size", action)
    labels = batch.get("labels")
    if labels is not None:
        _check_integers("labels", labels)
        supervised = labels.masked_fill(labels == IGNORED, 0)
        _check_range("labels", supervised, num_labels, "num_labels", f"correct the label; only {IGNORED} means ignored")
    for name in ("start_positions", "end_positions"):
        if name in batch:
            _check_integers(name, batch[name])
            _check_range(name, batch[name], length, "tokens", "encode the question again")


def _check_form(name: str, values: "Tensor") -> None:
    _check_integers(name, values)
    if values.dim() != 2 or values.numel() == 0:
        raise DataError(f"{name}: expected shape (rows, tokens), none of them 0, found {tuple(values.shape)}")


def _check_integers(name: str, values: "Tensor") -> None:
    if values.is_floating_point() or values.is_complex() or str(values.dtype) == "torch.bool":
        raise DataError(f"{name}: expected integers, found {values.dtype}; convert with .long()")


def _check_range(name: str, values: "Tensor", limit: int | None, limit_name: str, action: str) -> None:
    wrong = values < 0 if limit is None else (values < 0) | (values >= limit)
    if not bool(wrong.any()):
        return
    place = wrong.nonzero()[0].tolist()
    where = f"row {place[0]}" + (f", position {place[1]}" if len(place) > 1 else "")
    expected = "at least 0" if limit is None else f"0 <= value < {limit} ({limit_name})"
    raise DataError(f"{name}: {where}: expected {expected}, found {int(values[tuple(place)])}; {action}")
