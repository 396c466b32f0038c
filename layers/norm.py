"""Normalisation over the hidden dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers.initialization import DEFAULT_STD, init_when_built

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016, section 3).

    Args:
        hidden_size: Width of the last dimension.
        eps: Added to the variance, greater than 0.
        bias: Whether a bias is added.
        elementwise_affine: Whether there are a weight and a bias at all (Galactica has neither).
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, *, bias: bool = True, elementwise_affine: bool = True) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias and elementwise_affine else None
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Set the weight to ones and the bias to zeros; `std` has no part in it."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension.

        Args:
            hidden: (..., hidden_size) float.

        Returns:
            (..., hidden_size) float.
        """
        return F.layer_norm(hidden, (self.hidden_size,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        lacking = "elementwise_affine=False" if self.weight is None else "bias=False"
        return f"{self.hidden_size}, eps={self.eps:g}" + ("" if self.bias is not None else f", {lacking}")


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019, equation 4).

    The mean and the division run in float32 when the input is half precision, and the result is cast back before the weight is
    applied, as in T5's and LLaMA's reference implementations.

    Args:
        hidden_size: Width of the last dimension.
        eps: Added to the mean square, greater than 0.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Set the weight to ones; `std` has no part in it."""
        nn.init.ones_(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension.

        Args:
            hidden: (..., hidden_size) float.

        Returns:
            (..., hidden_size) float, in the wider of the input's and the weight's dtype.
        """
        if hidden.dtype == self.weight.dtype and hidden.dtype in (torch.float32, torch.float64):
            return F.rms_norm(hidden, (self.hidden_size,), self.weight, self.eps)
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(hidden.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return f"{self.hidden_size}, eps={self.eps:g}"
