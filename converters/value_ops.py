"""Operations that change values or sizes: what other libraries did to a model's tensors, undone.

Beside those of `modelzoo.converters.ops`, which only move elements. No family's own table uses these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.converters.ops import Shape
from modelzoo.errors import CheckpointError

__all__ = ["AddRows", "DropRows", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Each tensor times a number; its inverse divides by it.

    Exact in both directions for powers of two within the dtype's range. For other numbers both ways round: x / 100 * 100 is x to
    one unit in the last place of the dtype, and what a narrow dtype lost in its smallest values stays lost.

    Attributes:
        factor: The number, not zero.
        divides: Whether to divide by it instead.
    """

    factor: float
    divides: bool = False

    @property
    def inverse(self) -> "Scale":
        """The division by the same number, not the product with its rounded inverse."""
        return Scale(self.factor, not self.divides)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return scaled copies in the tensors' own dtype."""
        return [tensor / self.factor if self.divides else tensor * self.factor for tensor in tensors]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes as they are."""
        return list(shapes)


@dataclass(frozen=True)
class DropRows:
    """Each tensor without its last rows, which must be zero: rows that pad a vocabulary.

    Attributes:
        rows: How many rows are dropped.
    """

    rows: int

    @property
    def inverse(self) -> "AddRows":
        """The rows put back."""
        return AddRows(self.rows)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return contiguous copies of the rows that stay.

        Raises:
            CheckpointError: A dropped row holds a value, or there are not enough rows.
        """
        kept = [shape[0] for shape in self.shapes([tuple(tensor.shape) for tensor in tensors])]
        for tensor, count in zip(tensors, kept, strict=True):
            if tensor[count:].count_nonzero():
                raise CheckpointError(f"{self}: expected zeros from row {count} on, found {float(tensor[count:].abs().max()):g}")
        return [tensor[:count].clone() for tensor, count in zip(tensors, kept, strict=True)]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes with fewer rows."""
        for shape in shapes:
            if not shape or shape[0] <= self.rows:
                raise CheckpointError(f"{self}: expected more than {self.rows} rows, found {shape}")
        return [(shape[0] - self.rows, *shape[1:]) for shape in shapes]


@dataclass(frozen=True)
class AddRows:
    """Each tensor with rows of zeros after its own.

    Attributes:
        rows: How many rows are added.
    """

    rows: int

    @property
    def inverse(self) -> DropRows:
        """The rows dropped again."""
        return DropRows(self.rows)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the longer copies."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [torch.cat([tensor, tensor.new_zeros(self.rows, *tensor.shape[1:])]) for tensor in tensors]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes with more rows."""
        if not all(shapes):
            raise CheckpointError(f"{self}: expected tensors of rows, found {list(shapes)}")
        return [(shape[0] + self.rows, *shape[1:]) for shape in shapes]
