"""The norm of a model's gradients, right for any layout, and clipping by it."""

import math
from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modelzoo.runtime.lost import in_collective
from modelzoo.runtime.usage import drop_unused
from modelzoo.sharded import is_sharded, local_values

__all__ = ["clip_grad_norm"]

EPSILON = 1e-6
"""Added to the norm before dividing by it, as in `torch.nn.utils.clip_grads_with_norm_`."""


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None, *, divisor: float = 1.0) -> float:
    """Scale the gradients so that their global norm is at most `max_norm`, and return the norm before that.

    The norm is that of all gradients of the whole model, sharded or replicated or both, so it is the same on every rank. A norm
    that is not finite is returned and nothing is scaled. Gradients of parameters that no rank used, zeros of a sharded model, are
    taken away. Collective for sharded parameters.

    Args:
        parameters: Those whose `.grad` counts; parameters without one are left out.
        max_norm: Above 0, or None to measure only.
        divisor: What the gradients are too large by (a loss scale); they are divided by it, and the norm is that of the result.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None or _away(parameter) is not None]
    trained = drop_unused(trained)
    if not trained:
        return 0.0
    total = _total_norm(trained) / divisor
    norm = float(total)
    if not math.isfinite(norm):
        return norm
    factor = torch.ones_like(total) if max_norm is None else (max_norm / (total + EPSILON)).clamp(max=1.0)
    if max_norm is not None or divisor != 1.0:
        factor = factor / divisor
        here = [local_values(parameter.grad) for parameter in trained if parameter.grad is not None]
        if here:
            with torch.no_grad():
                torch._foreach_mul_(here, factor)
        for parameter in trained:
            away = _away(parameter)
            if away is not None:
                away.scale(float(factor))
    return norm


class AwayGradient(Protocol):
    """A gradient that is not in memory, as the attribute `away_gradient` of its parameter."""

    norm: Tensor
    """() float32, of this rank's part."""

    def scale(self, factor: float) -> None:
        """Multiply it, when it is used."""


def _away(parameter: nn.Parameter) -> AwayGradient | None:
    return getattr(parameter, "away_gradient", None)


def _total_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Return the norm of all gradients; what several ranks hold alike counts once.

    Norms of single gradients are added up in float64, the same way on one process and on many.
    """
    is_shared = any(is_sharded(parameter) for parameter in parameters)
    world_size = dist.get_world_size() if is_shared else 1
    here = [local_values(parameter.grad) for parameter in parameters if parameter.grad is not None]
    norms = iter(torch._foreach_norm(here) if here else [])
    each = [next(norms) if parameter.grad is not None else _away_norm(parameter) for parameter in parameters]
    copies = [_copies(parameter, world_size) for parameter in parameters]
    squares = each[0].new_zeros((), dtype=torch.float64)
    for count in sorted(set(copies)):
        some = [norm for norm, own in zip(each, copies, strict=True) if own == count]
        squares += torch.stack(some).double().square().sum() / count
    if is_shared:
        with in_collective("the sum of the gradient norm"):
            dist.all_reduce(squares)
    return squares.sqrt().float()


def _away_norm(parameter: nn.Parameter) -> Tensor:
    away = _away(parameter)
    assert away is not None
    return away.norm


def _copies(parameter: nn.Parameter, world_size: int) -> int:
    """Return how many ranks of the run hold the same part of a parameter."""
    if not is_sharded(parameter):
        return world_size
    mesh = parameter.device_mesh
    parts = math.prod(mesh.size(axis) for axis, placement in enumerate(parameter.placements) if not placement.is_replicate())
    return world_size // parts
