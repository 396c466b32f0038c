"""Texts of which a part is context, several in a row or one, and soft prompts before them: what CPM decoders are told of tokens."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.models.losses import IGNORED

__all__ = ["Marks", "Prompted", "before_labels", "predictable", "with_soft_prompts"]


class Marks(NamedTuple):
    """What is known of each token of a batch beside its id; each (B, T), or None where nobody says."""

    context: Tensor | None = None
    spans: Tensor | None = None
    segments: Tensor | None = None
    positions: Tensor | None = None


def predictable(labels: Tensor, marks: Marks) -> Tensor:
    """Return (B, T) labels without those that no token can be scored on: its predecessor sees it, or is of another text."""
    labels = labels.clone()
    labels[:, :1] = IGNORED
    if marks.context is not None:
        labels = labels.masked_fill(marks.context.bool(), IGNORED)
    if marks.spans is not None:
        is_first = torch.ones_like(labels, dtype=torch.bool)
        is_first[:, 1:] = marks.spans[:, 1:] != marks.spans[:, :-1]
        labels = labels.masked_fill(is_first, IGNORED)
    return labels


def before_labels(labels: Tensor, spans: Tensor | None) -> Tensor:
    """Return (B, T) bool of the tokens before the first labelled one of their text."""
    labelled = labels != IGNORED
    if spans is None:
        return labelled.cumsum(1) == 0
    number, first, _ = _texts(torch.ones_like(labels), spans)
    total = F.pad(labelled.cumsum(1), (1, 0))  # labelled ones before each column
    return total[:, 1:] == total.gather(1, first.clamp(max=labels.shape[1] - 1).gather(1, number))


def _texts(mask: Tensor, spans: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the texts of rows: (B, T) the number of each token's, (B, C) first columns, T where a row has fewer, and presence."""
    rows, width = mask.shape
    number = torch.zeros_like(mask, dtype=torch.int64)
    if spans is not None:
        number[:, 1:] = (spans[:, 1:] != spans[:, :-1]).cumsum(1)
    count = int(number.max()) + 1 if spans is not None and number.numel() else 1
    columns = torch.arange(width, device=mask.device).expand(rows, width)
    first = number.new_full((rows, count), width).scatter_reduce(1, number, columns, "amin")
    if spans is None:
        return number, torch.zeros_like(first), torch.ones_like(first)
    return number, first, (torch.zeros_like(first).scatter_add(1, number, (mask != 0).long()) > 0).long()


class Prompted(NamedTuple):
    """Texts with soft prompts before them, in W columns."""

    ids: Tensor
    """(B, W) int64."""
    mask: Tensor
    """(B, W)."""
    marks: Marks
    """Each (B, W); soft prompts are context, in segment 0."""
    places: Tensor
    """(B, T) int64: columns of the texts' tokens."""


def with_soft_prompts(ids: Tensor, mask: Tensor, marks: Marks, kinds: Tensor, *, length: int, first_id: int) -> Prompted:
    """Put a soft prompt before each text.

    Args:
        ids: (B, T) int64.
        mask: (B, T), non-zero where there is a token. A span of padding alone gets no prompt.
        marks: Context and segments of the tokens, and spans where a row has several texts.
        kinds: (B,) int64, the soft prompt of each row, or (B, T), at the first token of each text the text's.
        length: Tokens of a soft prompt.
        first_id: Id of the first soft prompt's first token.
    """
    assert marks.context is not None
    assert marks.segments is not None
    (rows, width), device = ids.shape, ids.device
    number, first, is_present = _texts(mask, marks.spans)
    count = first.shape[1]
    steps = torch.arange(length, device=device)
    own = torch.arange(count, device=device).expand(rows, count)
    places = torch.arange(width, device=device) + length * (number + 1)
    prompt_places = ((first + length * own).unsqueeze(2) + steps).flatten(1)
    of_text = kinds.unsqueeze(1).expand(rows, count) if kinds.dim() == 1 else kinds.gather(1, first.clamp(max=width - 1))
    prompts = (first_id + of_text.unsqueeze(2) * length + steps).flatten(1)

    def joined(of_prompts: Tensor, of_tokens: Tensor) -> Tensor:
        whole = of_tokens.new_zeros(rows, width + length * count)
        return whole.scatter(1, places, of_tokens).scatter(1, prompt_places, of_prompts.to(of_tokens.dtype))

    def each(of_texts: Tensor) -> Tensor:
        return of_texts.repeat_interleave(length, 1)

    prompted = Marks(
        context=joined(torch.ones_like(prompts), marks.context),
        spans=None if marks.spans is None else joined(each(own), number),
        segments=joined(torch.zeros_like(prompts), marks.segments),
    )
    return Prompted(joined(prompts, ids), joined(each(is_present), mask), prompted, places)
