"""RMS norms of a few rows in four operations: for one row the eleven of torch's own take longer than what they compute."""

from collections.abc import Callable

import torch
from torch import Tensor

from modelzoo.layers import RMSNorm

__all__ = ["row_norm"]

_MOST_ROWS = 64  # with more, arithmetic takes longer than calling operators


def row_norm(norm: RMSNorm, plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function of a norm: x sqrt(D) w / hypot(|x|, sqrt(D eps)), which is x w / sqrt(mean(x^2) + eps).

    Args:
        norm: Its weight is float32 on the CPU.
        plain: The norm's own function, for many rows, gradients, other dtypes, and after a change of the weight.
    """
    weight, version, size = norm.weight, norm.weight._version, norm.hidden_size
    with torch.no_grad():
        scaled, floor = weight * size**0.5, torch.tensor((size * norm.eps) ** 0.5)
    parameters = norm._parameters

    def normalised(hidden: Tensor) -> Tensor:
        is_current = parameters["weight"] is weight and weight._version == version
        if not is_current or torch.is_grad_enabled() or hidden.dtype != torch.float32 or hidden.numel() > _MOST_ROWS * size:
            return plain(hidden)
        length = torch.linalg.vector_norm(hidden, 2, -1, True).hypot_(floor)
        return hidden.div(length).mul_(scaled)

    return normalised
