"""A frozen base whose maps are stored in 8 or 4 bits by torchao, below an adapter in float32 (QLoRA, Dettmers et al., 2023).

A map's weight becomes floats again for the moment of a product, in the forward and once more in the backward: torchao's own product
of 8-bit weights keeps the floats of every map from one to the other, which is what a quantized base is to save.

    int8  one byte a value and one scale a row
    nf4   four bits a value, the 16 levels of a normal distribution, and one scale for 64 values, itself in 8 bits
"""

import logging
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.config.adapter import StoredAs
from modelzoo.errors import ConfigError
from modelzoo.layers import Linear
from modelzoo.sharded import stored_bytes

__all__ = ["describe_base", "is_quantized", "planned_bytes", "quantize_base", "quantized_maps"]

_BLOCK = 64
"""Values with a common scale (nf4)."""
_MOST_SCALES = 256
"""Scales that are stored with a common one (nf4)."""


class _Product(torch.autograd.Function):
    """x Wᵀ by a stored W, which has no gradient and is read again in the backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return F.linear(hidden, _plain(weight, hidden.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ _plain(ctx.weight, grad.dtype), None


class _StoredMap:
    """The forward of a map whose weight is stored in fewer bits."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, hidden: Tensor) -> Tensor:
        linear = self._linear
        mapped: Tensor = _Product.apply(hidden, linear.weight)  # type: ignore[no-untyped-call]  # torch gives no types
        mapped = mapped if linear.scale == 1.0 else mapped * linear.scale
        mapped = mapped if linear.bias is None else mapped + linear.bias
        return mapped if linear.adapter is None else linear.adapter(hidden, mapped, linear)


class _Keeper:
    """Stores a weight as it is read."""

    def __init__(self, kind: StoredAs) -> None:
        self.kind = kind

    def __call__(self, weight: Tensor) -> Tensor:
        wide = weight.detach().to(torch.float32)
        torchao: Any = _torchao(self.kind)
        if self.kind == "nf4":
            return cast(Tensor, torchao.to_nf4(wide, _BLOCK, _scales_together(wide.shape)))
        holder = nn.Linear(wide.shape[1], wide.shape[0], bias=False, device="meta")
        holder.weight = nn.Parameter(wide, requires_grad=False)
        # its settings of torch.compile would hold for the whole process
        torchao.quantize_(holder, torchao.Int8WeightOnlyConfig(set_inductor_config=False))
        return holder.weight.detach()


def quantize_base(model: nn.Module, kind: StoredAs) -> None:
    """Store the frozen maps of a model's blocks in fewer bits, in place: those that it has now, or, on meta, those that it loads.

    Embeddings, heads, norms, biases and experts of mixtures stay floats; with nf4 so does a map whose values are no multiple of 64.

    Args:
        model: With its adapter; not yet laid out.
        kind: How.

    Raises:
        ConfigError: torchao is missing, or no map is frozen.
    """
    _torchao(kind)
    chosen = [linear for linear in _maps(model) if not linear.weight.requires_grad and _is_fit(linear.weight.shape, kind)]
    if not chosen:
        raise ConfigError(f"adapter.base={kind}: {type(model).__name__} has no frozen map in its blocks; leave base out")
    for linear in chosen:
        keeper = _Keeper(kind)
        vars(linear).update(keep_weight=keeper, forward=_StoredMap(linear))
        if not linear.weight.is_meta:
            linear.weight = nn.Parameter(keeper(linear.weight), requires_grad=False)


def quantized_maps(model: nn.Module) -> list[tuple[Linear, StoredAs]]:
    """Return the maps whose weights are stored in fewer bits, or will be once they are loaded, and how."""
    return [(linear, linear.keep_weight.kind) for linear in _maps(model) if isinstance(linear.keep_weight, _Keeper)]


def is_quantized(model: nn.Module) -> bool:
    """Return whether a model's maps are stored in fewer bits than a float has."""
    return bool(quantized_maps(model))


def describe_base(model: nn.Module) -> str:
    """Return the line that says what a quantized base takes."""
    maps = quantized_maps(model)
    values, size = sum(linear.weight.numel() for linear, _ in maps), sum(stored_bytes(linear.weight) for linear, _ in maps)
    floats = 4 * values / 2**20
    return f"base     {len(maps)} maps of {values:,} values in {maps[0][1]}: {size / 2**20:.1f} MiB instead of {floats:.1f}"


def planned_bytes(shape: tuple[int, ...], kind: StoredAs) -> int:
    """Return the bytes of a stored weight.

    Args:
        shape: (rows, columns).
        kind: How it is stored.
    """
    values = math.prod(shape)
    if kind == "int8":
        return values + 5 * shape[0]
    scales = values // _BLOCK
    return values // 2 + scales + 4 * (scales // _scales_together(shape)) + 4 + 4 * 16


def _maps(model: nn.Module) -> Iterator[Linear]:
    for block in cast(Any, model).shard_units():
        yield from (module for module in block.modules() if isinstance(module, Linear))


def _is_fit(shape: tuple[int, ...], kind: StoredAs) -> bool:
    return kind == "int8" or math.prod(shape) % _BLOCK == 0


def _scales_together(shape: tuple[int, ...]) -> int:
    """Return how many scales share one of their own: the most that divide their number."""
    scales = math.prod(shape) // _BLOCK
    return next(count for count in range(min(_MOST_SCALES, scales), 0, -1) if scales % count == 0)


def _plain(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a stored weight as floats."""
    stored: Any = weight
    floats: Tensor = stored.get_original_weight() if hasattr(stored, "get_original_weight") else stored.dequantize()
    return floats.to(dtype)


def _torchao(kind: StoredAs) -> Any:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns of kernels for hardware that is not here
    try:
        from torchao import quantization
    except ImportError as error:
        raise ConfigError(
            f"adapter.base={kind} needs torchao, which is not installed; pip install 'modelzoo-hub[quantized]'"
        ) from error
    finally:
        logging.disable(before)
    return quantization
