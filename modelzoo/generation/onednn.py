"""oneDNN's own layout of a weight, and the matrix product that reads it: the one file that uses private operators of torch.

The reason: with one to a few rows, a product with a weight as torch stores it reads memory at about a third of the machine's speed
on CPUs without AVX-512, and prepacked weights at about twice that. torch offers prepacking to its own compiler alone, through the
operators `mkldnn::_reorder_linear_weight` and `mkldnn::_linear_pointwise`. Where they are missing, or do not give `F.linear`'s
result, `is_available` is False and callers keep the plain product.
"""

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PackedProduct", "is_available", "linear", "pack"]


@cache
def is_available() -> bool:
    """Return whether this machine and this torch have both operators, and they agree with `F.linear`."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 3, 16), (24, 16), (24,)))
    try:
        found = linear(hidden, pack(weight, 6), bias)
    except (RuntimeError, AttributeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return torch.allclose(found, F.linear(hidden, weight, bias), rtol=1e-5, atol=1e-5)


def pack(weight: Tensor, num_rows: int) -> Tensor:
    """Return a copy of a weight in oneDNN's layout, of the same size in memory.

    Args:
        weight: (out, in) float32 on the CPU.
        num_rows: Rows that it will be multiplied with; another number is as right, but slower.
    """
    with torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), num_rows)
    return packed


def linear(hidden: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return `F.linear` of a packed weight; there is no backward.

    Args:
        hidden: (..., in) float32.
        packed: Of `pack`.
        bias: (out,) float32, or None.

    Returns:
        (..., out) float32.
    """
    mapped: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, "none", [], "")
    return mapped


class PackedProduct:
    """x -> scale * (x Wᵀ) + b, by one or several maps of the same input; there is no backward.

    Args:
        weights: Each (out, in) float32 on the CPU; the outputs follow each other.
        biases: Each (out,) float32, or None for no biases.
        scale: Factor on x Wᵀ.
        num_rows: Rows that come at once; another number is as right, but slower.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None, scale: float, num_rows: int) -> None:
        weight = weights[0] if len(weights) == 1 else torch.cat([each.detach() for each in weights])
        self._packed, self._scale = pack(weight, num_rows), scale
        self._bias = None if biases is None else torch.cat([each.detach() for each in biases])
        self.size_bytes = weight.numel() * weight.element_size()

    def __call__(self, hidden: Tensor) -> Tensor:
        """Multiply.

        Args:
            hidden: (..., in) float32.

        Returns:
            (..., out) float32.
        """
        if self._scale == 1.0:
            return linear(hidden, self._packed, self._bias)
        mapped = linear(hidden, self._packed, None) * self._scale
        return mapped if self._bias is None else mapped + self._bias
