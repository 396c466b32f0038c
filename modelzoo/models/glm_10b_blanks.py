"""Where the tokens of GLM's texts and blanks stand."""

from typing import NamedTuple

import torch
from torch import Tensor

from modelzoo.errors import DataError
from modelzoo.models.inputs import check_length

__all__ = ["BlankPositions", "blank_positions", "given_or_found"]


class BlankPositions(NamedTuple):
    """Where the tokens of texts with blanks stand; each (B, T)."""

    text: Tensor
    """int64: place in the text, or for a blank that of its mask token."""
    blank: Tensor
    """int64: place in the blank, from 1; 0 in the text."""
    is_text: Tensor
    """bool: before the first start token."""


def blank_positions(ids: Tensor, mask: Tensor, *, start_token_id: int, mask_token_id: int) -> BlankPositions:
    """Find the blanks of texts.

    Args:
        ids: (B, T) int64.
        mask: (B, T) bool, True where there is a token.
        start_token_id: Begins a blank.
        mask_token_id: Stands for a blank in the text; the first blank is for the first of them. Where there are more blanks, the
            rest are for the last.

    Raises:
        DataError: A row has a blank and no mask token in its text.
    """
    places = (mask.long().cumsum(1) - 1).clamp(min=0)
    is_start = (ids == start_token_id) & mask
    number = is_start.cumsum(1)  # of the blank, from 1
    is_mask = (ids == mask_token_id) & mask & (number == 0)
    counts = is_mask.sum(1)
    without = (number[:, -1] > 0) & (counts == 0)
    if without.any():
        row = int(without.nonzero()[0])
        raise DataError(
            f"input_ids: row {row} has a start token {start_token_id} and before it no mask token {mask_token_id}, whose position "
            "its blank would have; put one into the text, or give position_ids and block_position_ids"
        )
    order = torch.argsort(~is_mask, dim=1, stable=True)  # columns of the mask tokens first, in order
    which = torch.minimum(number, counts.unsqueeze(1)).clamp(min=1) - 1
    text = torch.where(number == 0, places, places.gather(1, order.gather(1, which)))
    last_start = (torch.where(is_start, places, -1)).cummax(1).values
    blank = torch.where(number == 0, 0, places - last_start + 1)
    return BlankPositions(text, blank.masked_fill(~mask, 0), (number == 0) & mask)


def given_or_found(
    ids: Tensor,
    mask: Tensor,
    text: Tensor | None,
    blank: Tensor | None,
    *,
    start_token_id: int,
    mask_token_id: int,
    max_positions: int,
) -> BlankPositions:
    """Return both positions and what is text, found from the ids where they are not given.

    Args:
        ids: (B, T) int64.
        mask: (B, T) bool.
        text: (B, T) int64 places in the text; None to find them.
        blank: (B, T) int64 places in the blank; None to find them.
        start_token_id: As in `blank_positions`.
        mask_token_id: As in `blank_positions`.
        max_positions: Rows of either table.

    Raises:
        DataError: As `blank_positions`, or a place is outside of the tables.
    """
    if text is None or blank is None:
        found = blank_positions(ids, mask, start_token_id=start_token_id, mask_token_id=mask_token_id)
    else:
        found = BlankPositions(text, blank, (blank == 0) & mask)
    result = BlankPositions(found.text if text is None else text, found.blank if blank is None else blank, found.is_text)
    for name, places in (("position_ids", result.text), ("block_position_ids", result.blank)):
        low, high = torch.stack(torch.aminmax(places)).tolist()
        if low < 0:
            raise DataError(f"{name}: {low} is not in 0 to {max_positions - 1}")
        check_length(int(high) + 1, max_positions, f"{max_positions} rows of the table of {name}")
    return result
