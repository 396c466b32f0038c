"""Linear maps of one input on packed weights: packed when first used, and used as long as the weights stay as they were."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelzoo.generation import onednn, row_product
from modelzoo.layers import Embedding, Linear
from modelzoo.sharded import is_away

__all__ = ["PackedMap", "Packing", "can_be_packed", "is_available", "is_plain"]

_SMALLEST = 1 << 14  # elements: below, calling the operator costs more than reading faster saves


@dataclass(slots=True)
class Packing:
    """What a `prepacked` block holds in memory."""

    num_weights: int = 0
    """Weights that were packed so far."""
    size_bytes: int = 0
    """Bytes of their copies; some are read where they are."""


def is_available(num_rows: int) -> bool:
    """Return whether this machine can multiply so many rows with packed weights."""
    return onednn.is_available() or (num_rows == 1 and row_product.is_available())


def can_be_packed(module: nn.Module) -> bool:
    """Return whether a module is a plain map or table, of float32 on the CPU, and large enough to gain."""
    if type(module) not in (Linear, Embedding):
        return False
    assert isinstance(module, Linear | Embedding)
    is_whole = getattr(module, "vocabulary", None) is None
    return is_plain(module.weight) and is_whole and module.weight.numel() >= _SMALLEST


def is_plain(weight: Tensor) -> bool:
    """Return whether a weight is a parameter of its own, not a shard, of float32 in memory."""
    is_here = type(weight) is nn.Parameter and weight.device.type == "cpu" and not is_away(weight)
    return is_here and weight.dtype == torch.float32


class PackedMap:
    """What one or several maps make of an input, their outputs one after the other.

    Args:
        maps: Linear maps with equal scale, all with a bias or none; or one table, for its logits.
        num_rows: The most rows that come at once; the layout is chosen for them.
        packing: Where the memory is counted.
    """

    def __init__(self, maps: Sequence[Linear | Embedding], num_rows: int, packing: Packing) -> None:
        self._maps, self._num_rows, self._packing = maps, num_rows, packing
        # The dicts of the modules, because asking a module for a parameter takes ten times as long.
        self._known = [
            (each._parameters, name, value, value._version) for each in maps for name, value in each.named_parameters(recurse=False)
        ]
        self._width = maps[0].weight.shape[1]
        first = maps[0]
        self._scale = first.scale if isinstance(first, Linear) else 1.0
        self._product: onednn.PackedProduct | row_product.RowProduct | None = None

    def fits(self, hidden: Tensor) -> bool:
        """Return whether this input is mapped as plain weights would: no gradients, few rows, the same weights.

        Args:
            hidden: (..., in).
        """
        size = hidden.numel()
        if size > self._num_rows * self._width or not size or torch.is_grad_enabled() or hidden.dtype != torch.float32:
            return False
        if torch.is_autocast_enabled("cpu"):
            return False
        return all(owner[name] is value and value._version == version for owner, name, value, version in self._known)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map.

        Args:
            hidden: (..., in) float32 that `fits`.

        Returns:
            (..., out) float32, the outputs of all maps.
        """
        if self._product is None:
            self._product = self._packed()
        return self._product(hidden)

    def _packed(self) -> "onednn.PackedProduct | row_product.RowProduct":
        weights = [each.weight.detach() for each in self._maps]
        biases = [each.bias.detach() for each in self._maps if isinstance(each, Linear) and each.bias is not None] or None
        is_row = self._num_rows == 1 and row_product.is_available()
        product = (
            row_product.RowProduct(weights, biases, self._scale)
            if is_row
            else onednn.PackedProduct(weights, biases, self._scale, self._num_rows)
        )
        self._packing.num_weights += len(weights)
        self._packing.size_bytes += product.size_bytes
        return product
