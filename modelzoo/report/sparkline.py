"""A curve in one line of text, for terminals."""

import math
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["sparkline", "spread"]

BLOCKS = "▁▂▃▄▅▆▇█"


def spread(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` means of neighbouring finite values, in order.

    Args:
        values: In order.
        width: Most values of the result, at least 1.
    """
    finite = [value for value in values if math.isfinite(value)]
    count = min(width, len(finite))
    edges = [round(index * len(finite) / count) for index in range(count + 1)] if count else []
    return [sum(finite[start:end]) / (end - start) for start, end in pairwise(edges)]


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return the values as blocks from lowest to highest, at most `width` of them; empty without a finite value.

    Args:
        values: In order.
        width: Most characters.
    """
    means = spread(values, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in means)
