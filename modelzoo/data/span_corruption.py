"""Span corruption: a text with holes as input, and what stood in the holes as target (Raffel et al., 2020, T5, section 3.1.4).

Lengths are those of the reference code (`random_spans_noise_mask` of t5 and of transformers' FLAX example): the number of holes and
of hidden tokens depends on the length alone, and targets end with the end token, without the further sentinel of the paper's
figure. One difference: there a text begins with tokens that are kept and ends with hidden ones, which in a short text hides its end
each time; here a hole may be anywhere. The draws are a pure function of (seed, epoch, row).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelzoo.data.masking import draw
from modelzoo.errors import DataError

__all__ = ["SpanRule", "corrupt", "corrupted_lengths", "hole_lengths", "longest_text"]

_STREAM = 1 << 38  # keeps these draws apart from those of masks, whose rows are below it


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanRule:
    """How much is hidden, and by which tokens."""

    sentinel_ids: tuple[int, ...]
    """Ids of the sentinels in the order of their use."""
    end_id: int
    """Id that ends inputs and targets."""
    seed: int
    """Of the places."""
    share: float = 0.15
    """Share of the tokens that are hidden, above 0 and below 1."""
    mean_length: float = 3.0
    """Mean length of a hole in tokens, at least 1."""


def hole_lengths(count: int, rule: SpanRule) -> tuple[int, int]:
    """Return how many of `count` tokens are hidden, and in how many holes.

    Args:
        count: Tokens of a text, at least 2.
        rule: With the shares.
    """
    hidden = min(max(round(count * rule.share), 1), count - 1)
    holes = min(max(round(hidden / rule.mean_length), 1), hidden, count - hidden)
    return hidden, holes


def corrupted_lengths(count: int, rule: SpanRule) -> tuple[int, int]:
    """Return the tokens of input and target that a text of `count` tokens becomes, end tokens included."""
    hidden, holes = hole_lengths(count, rule)
    return count - hidden + holes + 1, hidden + holes + 1


def longest_text(limit: int, rule: SpanRule) -> int:
    """Return the tokens of the longest text whose input has at most `limit` tokens and whose holes have a sentinel each.

    Raises:
        DataError: If not even a text of two tokens fits.
    """

    def fits(count: int) -> bool:
        return corrupted_lengths(count, rule)[0] <= limit and hole_lengths(count, rule)[1] <= len(rule.sentinel_ids)

    if not fits(2):
        raise DataError(f"max_length={limit} leaves no room for a text with a hole; use at least 3")
    count = 2
    while fits(count + 1):
        count += 1
    return count


def corrupt(ids: Sequence[int], rule: SpanRule, *, epoch: int, row: int) -> tuple[list[int], list[int]]:
    """Return a text with a sentinel in place of each hole, and each sentinel with what it stands for; both end with the end token.

    Args:
        ids: Of a text without special tokens, at least 2.
        rule: Shares and ids.
        epoch: Number of the pass over the data, from 0.
        row: Number of the text, from 0.
    """
    hidden, holes = hole_lengths(len(ids), rule)
    raw = draw(rule.seed, epoch, _STREAM + row, count=len(ids) + 1)
    # before the first hole and after the last one there may be nothing
    kept_parts = _parts(len(ids) - hidden + 2, holes + 1, raw[:-hidden])
    kept_parts[0] -= 1
    hidden_parts = _parts(hidden, holes, raw[-hidden:])
    inputs: list[int] = []
    targets: list[int] = []
    start = 0
    for sentinel, kept, gone in zip(rule.sentinel_ids[:holes], kept_parts[:-1], hidden_parts, strict=True):
        inputs += [*ids[start : start + kept], sentinel]
        targets += [sentinel, *ids[start + kept : start + kept + gone]]
        start += kept + gone
    return [*inputs, *ids[start:], rule.end_id], [*targets, rule.end_id]


def _parts(total: int, count: int, raw: np.ndarray) -> list[int]:
    """Return the lengths of `count` parts of at least one token that add up to `total`; all ways to part are alike likely."""
    ends = np.sort(np.argsort(raw[: total - 1], kind="stable")[: count - 1]) + 1
    edges = [0, *ends.tolist(), total]
    return [after - before for before, after in itertools.pairwise(edges)]
