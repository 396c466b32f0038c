"""Checks at a model's door: what would be a bare IndexError deep inside, or a device-side assert, is named here."""

import torch
from torch import Tensor

from modelzoo.errors import DataError
from modelzoo.models.losses import IGNORED

__all__ = ["check_ids", "check_labels", "check_left_padded", "check_length", "check_shape"]

_ID_HINTS = {
    "input_ids": "use the tokenizer that belongs to this model",
    "token_type_ids": "leave them out, or use the tokenizer that belongs to this model",
    "decoder_input_ids": "use the tokenizer that belongs to this model",
    "position_ids": "leave them out, or count within the position table",
}


def check_ids(name: str, ids: Tensor, size: int, size_name: str) -> None:
    """Refuse ids outside a table.

    Args:
        name: Argument, as "input_ids".
        ids: (B, T) int.
        size: Rows of the table.
        size_name: Config field that holds it, as "vocab_size".

    Raises:
        DataError: Names the row, the position, the id and the size.
    """
    if ids.dim() != 2:
        raise DataError(f"{name} must be (batch, tokens), found shape {tuple(ids.shape)}; add the missing dimension")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise DataError(f"{name} must be integers, found {ids.dtype}; convert them with .long()")
    if not ids.numel():
        raise DataError(f"{name} is empty, shape {tuple(ids.shape)}; give at least one row with one token")
    low, high = torch.stack(torch.aminmax(ids)).tolist()
    if low < 0 or high >= size:
        row, column = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
        raise DataError(
            f"{name}: row {row}, position {column}: id {int(ids[row, column])} is not in 0 to {size - 1} "
            f"({size_name}={size}); {_ID_HINTS[name]}"
        )


def check_shape(name: str, tensor: Tensor, ids: Tensor, *, may_be_one_row: bool = False, of: str = "input_ids") -> None:
    """Refuse what goes with the ids but has another shape.

    Args:
        name: Argument, as "attention_mask".
        tensor: Expected (B, T).
        ids: (B, T).
        may_be_one_row: Whether (1, T) is taken for all rows.
        of: Argument that the ids are.

    Raises:
        DataError: Names both shapes.
    """
    if tensor.shape != ids.shape and not (may_be_one_row and tensor.shape == ids[:1].shape):
        raise DataError(f"{name} must have the shape of {of}, {tuple(ids.shape)}, found {tuple(tensor.shape)}")


def check_length(longest: int, limit: int, explanation: str) -> None:
    """Refuse a sequence that the position table does not reach.

    Args:
        longest: Tokens of the longest sequence.
        limit: Tokens that the model takes.
        explanation: Where the limit comes from, as "18 positions, padding_idx 1".

    Raises:
        DataError: Names both numbers.
    """
    if longest > limit:
        raise DataError(f"{longest} tokens, limit {limit} ({explanation}); truncate the text or set data.max_length={limit}")


def check_labels(name: str, labels: Tensor, shape: tuple[int, ...], num_labels: int) -> None:
    """Refuse labels outside the classes; -100 alone means "no target".

    Args:
        name: Argument, as "labels".
        labels: Of the given shape, int.
        shape: Expected shape.
        num_labels: Classes.

    Raises:
        DataError: Names the row, the value and the range.
    """
    if tuple(labels.shape) != shape:
        raise DataError(f"{name} must have shape {shape}, found {tuple(labels.shape)}")
    if labels.is_floating_point():
        raise DataError(f"{name} must be integers, found {labels.dtype}; convert them with .long()")
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= num_labels)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        value = int(labels[tuple(place)])
        where = f"row {place[0]}" + (f", position {place[1]}" if len(place) > 1 else "")
        raise DataError(f"{name}: {where}: {value} is not in 0 to {num_labels - 1}; the one label that is ignored is {IGNORED}")


def check_left_padded(mask: Tensor) -> None:
    """Refuse a prompt whose last column is padding, or that has padding between its tokens: what follows would follow the padding.

    Args:
        mask: (B, T) bool.

    Raises:
        DataError: Names the row.
    """
    present = mask.long()
    broken = (present[:, 1:] < present[:, :-1]).any(1) | ~mask[:, -1]
    if broken.any():
        row = int(broken.nonzero()[0])
        raise DataError(
            f"attention_mask: row {row}: padding stands after a token, and a continuation would follow the padding; "
            "pad prompts on the left"
        )
