"""What ranks of a tensor axis exchange inside a model's forward and backward, differentiable and counted.

Shoeybi et al. (2019, section 3): `enter` copies an activation into the part that each rank computes for itself, `leave` adds the
parts up, `gather` puts slices of the last dimension side by side. Each is the other's backward, so that everything outside sees
the numbers of one process on every rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from modelzoo.runtime.exchange.traffic import Traffic
from modelzoo.runtime.tensor.token_slices import add_and_cut, exchange, gather

__all__ = ["TensorAxis"]


class TensorAxis:
    """The ranks that compute one sample together, as one of them sees them.

    Args:
        group: Their process group.
        traffic: Where what they exchange is counted.
    """

    def __init__(self, group: dist.ProcessGroup, traffic: Traffic) -> None:
        self.group = group
        self.size = group.size()
        self.rank = group.rank()
        self.traffic = traffic
        self._entered: tuple[Tensor, Tensor] | None = None
        self.token_shape: tuple[int, ...] | None = None
        """Shape of all tokens where each rank has a slice of them; None where every rank has all."""
        self._region: Tensor | None = None

    def enter(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself; its gradient is the sum of all ranks' gradients.

        Maps that read the same tensor one after the other (query, key and value) share one sum.
        """
        if not torch.is_grad_enabled() or tensor is self._region:
            return tensor
        if self._entered is not None and self._entered[0] is tensor:
            return self._entered[1]
        entered: Tensor = _Enter.apply(tensor, self)  # type: ignore[no-untyped-call]  # torch gives Function.apply no types
        self._entered = (tensor, entered)
        return entered

    @contextmanager
    def sliced(self, shape: tuple[int, ...] | None) -> Iterator[None]:
        """Say that each rank has a slice of the tokens inside the block.

        Args:
            shape: Of all tokens; None says that every rank has all.
        """
        before, self.token_shape = self.token_shape, shape
        try:
            yield
        finally:
            self.token_shape = before

    @contextmanager
    def region(self, everything: Tensor) -> Iterator[None]:
        """Say that a sublayer reads the gathered tokens inside the block: entering exchanges nothing, leaving cuts into slices."""
        self._region = everything
        try:
            yield
        finally:
            self._region = None

    @property
    def is_in_region(self) -> bool:
        """Whether what leaves is cut into slices."""
        return self._region is not None

    def share(self, weight: Tensor) -> Tensor:
        """Return a whole weight that each rank applies to values of its own; its gradient is the sum of all ranks' gradients."""
        shared: Tensor = _Enter.apply(weight, self)  # type: ignore[no-untyped-call]  # as above
        return shared

    def leave(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors; at the end of a region, this rank's slice of it."""
        self._entered = None
        if self._region is not None and self.token_shape is not None:
            return exchange(tensor, self, self.token_shape, forward=add_and_cut, backward=gather)
        total: Tensor = _Leave.apply(tensor, self)  # type: ignore[no-untyped-call]  # as above
        return total

    def gather(self, tensor: Tensor, sizes: list[int]) -> Tensor:
        """Return all ranks' tensors side by side in their last dimension.

        Args:
            tensor: (..., own size) float.
            sizes: Each rank's size.
        """
        self._entered = None
        whole: Tensor = _Gather.apply(tensor, self, sizes)  # type: ignore[no-untyped-call]  # as above
        return whole

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, without a gradient."""
        return self._reduce(tensor.detach(), dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Return the largest of all ranks' values, place by place, without a gradient."""
        return self._reduce(tensor.detach(), dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, op: Any) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self.traffic.timed("tensor", 2 * total.nbytes * (self.size - 1) // self.size):
            dist.all_reduce(total, op=op, group=self.group)
        return total

    def _gather(self, tensor: Tensor, sizes: list[int]) -> Tensor:
        widest = max(sizes)
        padded = torch.nn.functional.pad(tensor, (0, widest - tensor.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        with self.traffic.timed("tensor", padded.nbytes * (self.size - 1)):
            dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], dim=-1)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.sum(grad), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        return axis.sum(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis, sizes: list[int]) -> Tensor:
        ctx.start, ctx.size = sum(sizes[: axis.rank]), sizes[axis.rank]
        return axis._gather(tensor, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(-1, ctx.start, ctx.size).contiguous(), None, None
