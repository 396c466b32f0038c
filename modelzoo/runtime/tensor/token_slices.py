"""Slices of the tokens, one a rank of a tensor axis, and the exchanges between slices and the whole, differentiable and counted."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from modelzoo.runtime.exchange.part_exchange import all_gather, reduce_scatter
from modelzoo.runtime.exchange.traffic import Traffic

__all__ = ["Ranks", "add_and_cut", "cut", "exchange", "gather"]

Shape = tuple[int, ...]
Step = Callable[[Tensor, "Ranks", Shape], Tensor]


class Ranks(Protocol):
    """What is needed of a tensor axis."""

    group: dist.ProcessGroup
    size: int
    rank: int
    traffic: Traffic


def cut(whole: Tensor, ranks: Ranks, shape: Shape) -> Tensor:
    """Return this rank's rows of (*shape, D): (rows, D), as many on every rank, zeros after the last token."""
    rows = _padded(whole, ranks, shape)
    chunk = len(rows) // ranks.size
    return rows[ranks.rank * chunk : (ranks.rank + 1) * chunk].clone()


def gather(rows: Tensor, ranks: Ranks, shape: Shape) -> Tensor:
    """Return all ranks' rows put together: (*shape, D)."""
    rows = rows.contiguous()
    whole = rows.new_empty(ranks.size * len(rows), *rows.shape[1:])
    with ranks.traffic.timed("tensor", whole.nbytes * (ranks.size - 1) // ranks.size):
        all_gather(whole, rows, ranks.group)
    return whole[: math.prod(shape)].view(*shape, *rows.shape[1:])


def add_and_cut(part: Tensor, ranks: Ranks, shape: Shape) -> Tensor:
    """Return this rank's rows of the sum of all ranks' (*shape, D)."""
    rows = _padded(part, ranks, shape)
    own = rows.new_empty(len(rows) // ranks.size, *rows.shape[1:])
    with ranks.traffic.timed("tensor", rows.nbytes * (ranks.size - 1) // ranks.size):
        reduce_scatter(own, rows, ranks.group)
    return own


def exchange(tensor: Tensor, ranks: Ranks, shape: Shape, *, forward: Step, backward: Step) -> Tensor:
    """Return `forward` of a tensor, whose gradient is `backward` of the result's.

    Args:
        tensor: Rows, or the whole.
        ranks: Of the tensor axis.
        shape: (tokens,) packed or (B, T) dense, of the whole.
        forward: One of this module's three.
        backward: One of them.
    """
    result: Tensor = _Exchange.apply(tensor, ranks, shape, forward, backward)  # type: ignore[no-untyped-call]  # torch gives no types
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks, shape: Shape, forward: Step, backward: Step) -> Tensor:
        ctx.back = (ranks, shape, backward)
        return forward(tensor, ranks, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ranks, shape, backward = ctx.back
        return backward(grad, ranks, shape), None, None, None, None


def _padded(whole: Tensor, ranks: Ranks, shape: Shape) -> Tensor:
    """Return (tokens, D) with zero rows at the end, so that the ranks' number divides them."""
    rows = whole.reshape(math.prod(shape), *whole.shape[len(shape) :])
    missing = -len(rows) % ranks.size
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows.contiguous()
