"""What can happen to tensors between their file and our model: invertible, bit-exact operations, one rule at a time.

Every operation goes from Hugging Face's tensors to ours; `inverse` is the way back. It is derived from the operation's own
arguments, so a table never states it. All of them move elements and compute nothing: values, and gradients as well, pass
through unchanged. They are written with torch functions that plain tensors and DTensors share; RotaryPermute alone needs the
whole tensor, since it picks rows from everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from modelzoo.errors import CheckpointError

__all__ = ["Chain", "Concat", "Copy", "Operation", "RotaryPermute", "Shape", "Split", "Stack", "Transpose", "Unstack"]

Shape = tuple[int, ...]
"""The sizes of a tensor, outermost first."""


class Operation(Protocol):
    """An invertible map from a list of tensors to a list of tensors."""

    @property
    def inverse(self) -> "Operation":
        """The operation that undoes this one."""

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Map the tensors.

        Raises:
            CheckpointError: Their number or shapes do not fit the operation.
        """

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes that `apply` gives for tensors of these shapes.

        Raises:
            CheckpointError: Their number or shapes do not fit the operation.
        """


def _expect(condition: bool, operation: object, expected: str, found: object) -> None:
    if not condition:
        raise CheckpointError(f"{operation}: expected {expected}, found {found}")


@dataclass(frozen=True)
class Copy:
    """The same tensor under another name; any number of them."""

    @property
    def inverse(self) -> "Copy":
        """Itself."""
        return self

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors as they are (no new memory)."""
        return list(tensors)

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes as they are."""
        return list(shapes)


@dataclass(frozen=True)
class Transpose:
    """(A, B) to (B, A), each tensor on its own: GPT-2 stores its Linear weights as (in_features, out_features)."""

    @property
    def inverse(self) -> "Transpose":
        """Itself."""
        return self

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return contiguous transposed copies."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [tensor.transpose(0, 1).contiguous() for tensor in tensors]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes with both sizes swapped."""
        for shape in shapes:
            _expect(len(shape) == 2, self, "a tensor of 2 dims", shape)
        return [(shape[1], shape[0]) for shape in shapes]


def _total(sizes: tuple[int, ...] | int, length: int, operation: object) -> tuple[int, ...]:
    """Return the sizes of the parts of a dim of that length."""
    if isinstance(sizes, int):
        _expect(length % sizes == 0, operation, f"a size that {sizes} equal parts divide", length)
        return (length // sizes,) * sizes
    _expect(sum(sizes) == length, operation, f"a size of {sum(sizes)}", length)
    return sizes


@dataclass(frozen=True)
class Split:
    """One tensor to several along `dim`: a fused qkv to query, key and value.

    Attributes:
        parts: The number of equal parts, or the size of each part.
        dim: The dim that is cut, from 0.
    """

    parts: int | tuple[int, ...]
    dim: int = 0

    @property
    def inverse(self) -> "Concat":
        """The parts joined again."""
        return Concat(self.parts, self.dim)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return contiguous copies of the parts."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        sizes = _total(self.parts, tensors[0].shape[self.dim], self)
        return [part.contiguous() for part in torch.split(tensors[0], list(sizes), dim=self.dim)]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the parts."""
        _expect(len(shapes) == 1 and len(shapes[0]) > self.dim, self, f"1 tensor of more than {self.dim} dims", list(shapes))
        shape = shapes[0]
        sizes = _total(self.parts, shape[self.dim], self)
        return [(*shape[: self.dim], size, *shape[self.dim + 1 :]) for size in sizes]


@dataclass(frozen=True)
class Concat:
    """Several tensors to one along `dim`.

    Attributes:
        parts: How many tensors of one size, or the size of each.
        dim: The dim along which they are joined, from 0.
    """

    parts: int | tuple[int, ...]
    dim: int = 0

    @property
    def inverse(self) -> Split:
        """The whole cut into its parts again."""
        return Split(self.parts, self.dim)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the joined tensor in a list."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [torch.cat(list(tensors), dim=self.dim)]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the joined shape in a list."""
        count = self.parts if isinstance(self.parts, int) else len(self.parts)
        _expect(len(shapes) == count and all(len(s) > self.dim for s in shapes), self, f"{count} tensors", list(shapes))
        rests = {(*shape[: self.dim], *shape[self.dim + 1 :]) for shape in shapes}
        _expect(len(rests) == 1, self, f"tensors that agree beside dim {self.dim}", list(shapes))
        total = sum(shape[self.dim] for shape in shapes)
        sizes = _total(self.parts, total, self)
        found = tuple(shape[self.dim] for shape in shapes)
        _expect(sizes == found, self, f"sizes {sizes} along dim {self.dim}", found)
        first = shapes[0]
        return [(*first[: self.dim], total, *first[self.dim + 1 :])]


@dataclass(frozen=True)
class RotaryPermute:
    """Rows of a query or key projection from one rotary convention to the other.

    "half_split" (Hugging Face's LLaMA) turns row i of a head together with row i + H/2, "interleaved" (Meta's files, GPT-J) row
    2i with row 2i + 1. For a grouped key `num_heads` is the number of key heads: with the number of query heads the permutation
    is wrong and no shape tells.

    Attributes:
        num_heads: Heads of this very projection.
        to: The convention of the result; the tensors come in the other one.
        rotary_size: Leading rows of each head that are rotated, an even number; None: all.
    """

    num_heads: int
    to: Literal["half_split", "interleaved"]
    rotary_size: int | None = None

    @property
    def inverse(self) -> "RotaryPermute":
        """The permutation to the other convention."""
        other: Literal["half_split", "interleaved"] = "interleaved" if self.to == "half_split" else "half_split"
        return RotaryPermute(self.num_heads, other, self.rotary_size)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return permuted copies of (heads x head size, ...) weights or biases."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [tensor.index_select(0, self._rows(tensor.shape[0]).to(tensor.device)) for tensor in tensors]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes as they are."""
        for shape in shapes:
            _expect(len(shape) >= 1 and shape[0] % self.num_heads == 0, self, f"rows that {self.num_heads} heads divide", shape)
            size = self.rotary_size or shape[0] // self.num_heads
            fits = size % 2 == 0 and size <= shape[0] // self.num_heads
            _expect(fits, self, f"an even rotary size within the head size {shape[0] // self.num_heads}", size)
        return list(shapes)

    def _rows(self, rows: int) -> Tensor:
        head_size = rows // self.num_heads
        size = self.rotary_size or head_size
        paired = torch.arange(size)
        order = paired.view(-1, 2).t() if self.to == "half_split" else paired.view(2, -1).t()
        head = torch.cat([order.reshape(-1), torch.arange(size, head_size)])
        return (torch.arange(self.num_heads).unsqueeze(1) * head_size + head).reshape(-1)


@dataclass(frozen=True)
class Stack:
    """`count` tensors of one shape to one with a new first dim: the experts of a layer."""

    count: int

    @property
    def inverse(self) -> "Unstack":
        """The stack taken apart."""
        return Unstack(self.count)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the stacked tensor in a list."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [torch.stack(list(tensors))]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the stacked shape in a list."""
        _expect(len(shapes) == self.count and len(set(shapes)) == 1, self, f"{self.count} tensors of one shape", list(shapes))
        return [(self.count, *shapes[0])]


@dataclass(frozen=True)
class Unstack:
    """One tensor to its `count` rows along the first dim."""

    count: int

    @property
    def inverse(self) -> Stack:
        """The rows stacked again."""
        return Stack(self.count)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return contiguous copies of the rows."""
        self.shapes([tuple(tensor.shape) for tensor in tensors])
        return [part.contiguous() for part in torch.unbind(tensors[0])]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the rows."""
        fits = len(shapes) == 1 and len(shapes[0]) >= 1 and shapes[0][0] == self.count
        _expect(fits, self, f"1 tensor with a first dim of {self.count}", list(shapes))
        return [shapes[0][1:]] * self.count


@dataclass(frozen=True)
class Chain:
    """One operation after another: GPT-2's fused and transposed qkv is split, then each part transposed.

    Attributes:
        first: The operation on Hugging Face's tensors.
        second: The operation on its results.
    """

    first: Operation
    second: Operation

    @property
    def inverse(self) -> "Chain":
        """The inverses in the other order."""
        return Chain(self.second.inverse, self.first.inverse)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Map the tensors through both."""
        return self.second.apply(self.first.apply(tensors))

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes that both give."""
        return self.second.shapes(self.first.shapes(shapes))
