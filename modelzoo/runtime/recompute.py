"""Activations computed twice instead of kept: a block's forward runs again in its backward (Chen et al., 2016).

A block's `forward` is replaced on the instance, so that names of parameters, hooks and keyword arguments stay as they are.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from modelzoo.config.parallel import recomputed

__all__ = ["keep_inputs", "recompute"]

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
"""What `selective` does not compute again: matrix products and attention, which take nearly all of the time."""

Keeper = Callable[[Tensor], AbstractContextManager[Any]]
_KEEPERS: WeakKeyDictionary[nn.Module, Keeper] = WeakKeyDictionary()


def recompute(units: Sequence[nn.Module], how: str) -> None:
    """Make blocks compute their activations again in the backward; results are equal, dropout included.

    A block has to do the same twice: Hugging Face's decoders need `use_cache=False`, or torch says that the two runs differ.

    Args:
        units: The blocks, in forward order.
        how: As `ParallelConfig.recompute`: "none", "blocks", "selective", "first N" or "every N" (blocks N, 2 N, ...).
    """
    for unit, is_chosen in zip(units, recomputed(how, len(units)), strict=True):
        if is_chosen:
            unit.forward = _twice(unit, unit.forward, is_selective=how == "selective")


def keep_inputs(units: Sequence[nn.Module], keeper: Keeper | None) -> None:
    """Say where the inputs of blocks that are computed again are kept; blocks that are not, keep theirs as before.

    Args:
        units: The blocks.
        keeper: Takes a block's first argument and returns the context in which its inputs are saved; None keeps them in memory.
    """
    for unit in units:
        if keeper is None:
            _KEEPERS.pop(unit, None)
        else:
            _KEEPERS[unit] = keeper


def _twice(unit: nn.Module, forward: Callable[..., Any], *, is_selective: bool) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": False}
    if is_selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        keeper = _KEEPERS.get(unit)
        has_stream = keeper is not None and bool(args) and isinstance(args[0], Tensor)
        with keeper(args[0]) if keeper is not None and has_stream else nullcontext():
            return checkpoint(forward, *args, **options, **kwargs)

    return run


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
