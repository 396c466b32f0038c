"""A table of the vocabulary of which this process holds only some rows, as a tensor-parallel runtime sees to it."""

from typing import Protocol

from torch import Tensor

__all__ = ["Vocabulary"]


class Vocabulary(Protocol):
    """The rows of an output table that are here, and sums over those that are elsewhere.

    A runtime that cuts a table over processes sets one as the `vocabulary` of the layer; a layer without one holds every row.
    """

    start: int
    """Id of the first row that is here."""

    def weight(self) -> Tensor:
        """Return the rows that are here, (rows, D) float."""

    def bias(self) -> Tensor | None:
        """Return their biases, (rows,) float, if the layer has any."""

    def enter(self, hidden: Tensor) -> Tensor:
        """Return `hidden`, whose gradient becomes the sum of what all processes compute."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the processes, without a gradient."""

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of all processes, place by place, without a gradient."""
