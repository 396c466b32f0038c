"""The norm of a model's gradients, right for any layout, and clipping by it."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modelzoo.sharded import is_sharded, local_values

__all__ = ["clip_grad_norm"]

EPSILON = 1e-6
"""Added to the norm before dividing by it, as in `torch.nn.utils.clip_grads_with_norm_`."""


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None, *, divisor: float = 1.0) -> float:
    """Scale the gradients so that their global norm is at most `max_norm`, and return the norm before that.

    The norm is that of all gradients of the whole model, sharded or replicated or both, so it is the same on every rank. A norm
    that is not finite is returned and nothing is scaled. Collective for sharded parameters.

    Args:
        parameters: Those whose `.grad` counts; parameters without one are left out.
        max_norm: Above 0, or None to measure only.
        divisor: What the gradients are too large by (a loss scale); they are divided by it, and the norm is that of the result.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    total = _total_norm(gradients) / divisor
    norm = float(total)
    if not math.isfinite(norm):
        return norm
    factor = torch.ones_like(total) if max_norm is None else (max_norm / (total + EPSILON)).clamp(max=1.0)
    if max_norm is not None or divisor != 1.0:
        with torch.no_grad():
            torch._foreach_mul_([local_values(gradient) for gradient in gradients], factor / divisor)
    return norm


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients; what several ranks hold alike counts once."""
    if not any(is_sharded(gradient) for gradient in gradients):
        return nn.utils.get_total_norm(gradients)
    world_size = dist.get_world_size()
    squares = local_values(gradients[0]).new_zeros((), dtype=torch.float64)
    for copies in {_copies(gradient, world_size) for gradient in gradients}:
        some = [local_values(gradient) for gradient in gradients if _copies(gradient, world_size) == copies]
        squares += torch.stack(torch._foreach_norm(some)).double().square().sum() / copies
    dist.all_reduce(squares)
    return squares.sqrt().float()


def _copies(gradient: Tensor, world_size: int) -> int:
    """Return how many ranks of the run hold the same part of a gradient."""
    if not is_sharded(gradient):
        return world_size
    mesh = gradient.device_mesh
    parts = math.prod(mesh.size(axis) for axis, placement in enumerate(gradient.placements) if not placement.is_replicate())
    return world_size // parts
