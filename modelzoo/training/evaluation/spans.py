"""From start and end logits to answers: the best span of each window, and the best window of each question."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Span", "best_spans", "better_span"]

NUM_CANDIDATES = 20
LONGEST_ANSWER = 30
"""Candidates and longest answer in tokens, as in the SQuAD scripts of BERT and transformers."""


@dataclass(frozen=True, slots=True)
class Span:
    """The best answer of a window, or of a question."""

    score: float
    """Start plus end logit."""
    start: int
    """First character in the context."""
    end: int
    """One after the last character; equal to `start` where there is no candidate."""
    null_score: float
    """Score of "no answer here": start plus end logit of the first token."""

    def text(self, context: str, *, may_be_empty: bool) -> str:
        """Return the answer, empty where questions may have none and that scores higher."""
        return "" if may_be_empty and self.null_score > self.score else context[self.start : self.end]


def best_spans(start_logits: Tensor, end_logits: Tensor, offsets: Sequence[Sequence[tuple[int, int] | None]]) -> list[Span]:
    """Return the best span of each window.

    Args:
        start_logits: (B, T) float.
        end_logits: (B, T) float.
        offsets: Characters of each token in the context, None for tokens outside it; one list a window.
    """
    result = []
    for starts, ends, places in zip(start_logits.float().cpu(), end_logits.float().cpu(), offsets, strict=True):
        inside = torch.tensor([place is not None for place in places])
        first = starts[: len(places)].masked_fill(~inside, -torch.inf)
        last = ends[: len(places)].masked_fill(~inside, -torch.inf)
        candidates = [
            (float(first[begin] + last[end]), begin, end)
            for begin in first.topk(min(NUM_CANDIDATES, len(places))).indices.tolist()
            for end in last.topk(min(NUM_CANDIDATES, len(places))).indices.tolist()
            if begin <= end < begin + LONGEST_ANSWER and inside[begin] and inside[end]
        ]
        null_score = float(starts[0] + ends[0])
        score, begin, end = max(candidates, default=(-torch.inf, 0, 0), key=lambda candidate: candidate[0])
        if not candidates:
            result.append(Span(score, 0, 0, null_score))
            continue
        start_place, end_place = places[begin], places[end]
        assert start_place is not None
        assert end_place is not None
        result.append(Span(score, start_place[0], end_place[1], null_score))
    return result


def better_span(first: Span, second: Span) -> Span:
    """Return the better answer of two windows of a question; "no answer" must win in every window, so its least score counts."""
    best = first if (first.score, -first.start) >= (second.score, -second.start) else second
    return Span(best.score, best.start, best.end, min(first.null_score, second.null_score))
