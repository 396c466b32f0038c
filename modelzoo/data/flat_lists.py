"""Lists of unequal length as one array each: all values one after another, and where each list begins."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["context_offsets", "flat", "split", "starts"]


def starts(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Return where each list begins, and where the last one ends: (lists + 1,) int64."""
    return np.concatenate([[0], np.cumsum([len(values) for values in lists])])


def flat(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Return all values: (values,) int32."""
    return np.fromiter((value for values in lists for value in values), dtype="<i4")


def split(values: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Return values cut into lists of the given lengths."""
    places = [0]
    for length in lengths:
        places.append(places[-1] + length)
    return [list(values[start:end]) for start, end in pairwise(places)]


def context_offsets(encodings: Sequence[Any]) -> np.ndarray:
    """Return the characters [start, end) in its context of each token of windows, -1 for tokens outside: (tokens, 2) int32."""
    offsets = [
        offset if sequence == 1 else (-1, -1)
        for encoding in encodings
        for offset, sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]
    return np.asarray(offsets, dtype="<i4")
