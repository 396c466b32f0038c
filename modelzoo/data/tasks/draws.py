"""Samples that are made anew in each epoch."""

from typing import Any, Protocol

__all__ = ["Draws", "Item"]

Item = dict[str, Any]
"""One sample by the model's arguments: lists of ints, or an int."""


class Draws(Protocol):
    """Makes an item anew for each epoch, as a function of (seed, epoch, row) alone."""

    def draw(self, ids: list[int], *, epoch: int, row: int) -> Item:
        """Return an item.

        Args:
            ids: Of the encoding.
            epoch: Number of the pass over the data.
            row: Number of the item.
        """
        ...

    def lengths(self, count: int) -> tuple[int, int]:
        """Return the tokens of an item of `count` ids: those that the model reads, and those of a decoder beside an encoder."""
        ...
