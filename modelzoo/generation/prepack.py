"""Weights in the CPU's own layout while a model writes.

Writing one token reads every weight once, so its time is that of reading memory; prepacked weights are read about twice as fast
(see `onednn`). The layers' functions are replaced on the instances and put back afterwards: layers and models know nothing of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelzoo.generation import onednn
from modelzoo.layers import Embedding, Linear

__all__ = ["Packing", "is_worth_it", "prepacked"]

_WORTH_TOKENS = 16  # packing costs about as much time as it saves on ten tokens
_SMALLEST = 1 << 14  # elements: below, calling the operator costs more than reading faster saves
_MOST_ROWS = 64  # with more, a product is bound by arithmetic, where prepacking gains less than a tenth


@dataclass(slots=True)
class Packing:
    """What a `prepacked` block holds in memory."""

    num_weights: int = 0
    """Weights that were packed so far."""
    size_bytes: int = 0
    """Bytes of their copies."""


def is_worth_it(num_tokens: int, num_rows: int) -> bool:
    """Return whether writing so many tokens to so many rows pays for packing the weights."""
    return num_tokens >= _WORTH_TOKENS and num_rows <= _MOST_ROWS


@contextmanager
def prepacked(model: nn.Module, num_rows: int = 1) -> Iterator[Packing]:
    """Run a model's linear maps and tied heads on prepacked weights inside a `with`; outside it everything is as before.

    Results differ from the plain ones by rounding, and tokens are the same. `generate` does this by itself; around many calls it
    saves packing the weights each time. A weight is packed when it first meets at most `num_rows` rows, and its copy takes as much
    memory as it does, so a model takes up to twice its memory. Where packing does not apply (no oneDNN, an accelerator, half
    precision, sharded or small weights, a forward with gradients or autocast, a weight that was changed inside, or more rows, as
    when a prompt is read) the plain computation runs.

    Args:
        model: Any model built from `modelzoo.layers`.
        num_rows: Sequences that are written at once, beams counted, at least 1; the layout is chosen for them.

    Yields:
        The memory that the copies take; it grows until each weight was used.
    """
    packing = Packing()
    replaced: list[tuple[nn.Module, str]] = []
    try:
        for module in model.modules() if onednn.is_available() else ():
            name = _function_of(module)
            if name is not None:
                setattr(module, name, _packed_function(module, getattr(module, name), num_rows, packing))
                replaced.append((module, name))
        yield packing
    finally:
        for module, name in replaced:
            delattr(module, name)


def _function_of(module: nn.Module) -> str | None:
    """Return the name of the function that can be replaced; None for none, also where that was done already."""
    if type(module) not in (Linear, Embedding):
        return None
    assert isinstance(module, Linear | Embedding)
    name = "forward" if isinstance(module, Linear) else "logits"
    weight = module.weight
    is_plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype == torch.float32
    return name if is_plain and weight.numel() >= _SMALLEST and name not in vars(module) else None


def _packed_function(
    module: nn.Module, plain: Callable[[Tensor], Tensor], num_rows: int, packing: Packing
) -> Callable[[Tensor], Tensor]:
    """Return `plain` on a packed weight, with the same argument and result."""
    assert isinstance(module, Linear | Embedding)
    weight, version = module.weight, module.weight._version
    bias = module.bias if isinstance(module, Linear) else None
    scale = module.scale if isinstance(module, Linear) else 1.0
    packed: Tensor | None = None

    def computed(hidden: Tensor) -> Tensor:
        nonlocal packed
        fits = hidden.dtype == torch.float32 and hidden.numel() <= num_rows * hidden.shape[-1]
        is_current = module.weight is weight and weight._version == version
        if not fits or not is_current or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return plain(hidden)
        if packed is None:
            packed = onednn.pack(weight, num_rows)
            packing.num_weights += 1
            packing.size_bytes += weight.numel() * weight.element_size()
        if scale == 1.0:
            return onednn.linear(hidden, packed, bias)
        mapped = onednn.linear(hidden, packed, None) * scale
        return mapped if bias is None else mapped + bias

    return computed
