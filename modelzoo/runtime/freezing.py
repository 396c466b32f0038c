"""Freezing at any time: a parameter's `requires_grad` follows it, whether it stands in its module whole or as this rank's shard.

`fully_shard` swaps a shard for the whole parameter while a unit computes, and after a forward without a backward the whole one
stays. A flag that is set on it then would be lost when the shard comes back.
"""

from typing import Any

from torch import Tensor, nn

from modelzoo.runtime.axes import SHARD
from modelzoo.sharded import is_sharded

__all__ = ["follow_freezing", "keep_flags"]


class _Flags:
    """Which shard stands behind each parameter of a model."""

    def __init__(self) -> None:
        self._shards: dict[tuple[nn.Module, str], nn.Parameter] = {}

    def keep(self, model: nn.Module) -> None:
        """Carry flags of whole parameters over to their shards."""
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                if _is_shard(parameter):
                    self._shards[module, name] = parameter
                elif (shard := self._shards.get((module, name))) is not None:
                    shard.requires_grad_(parameter.requires_grad)


def _is_shard(parameter: Tensor) -> bool:
    return is_sharded(parameter) and SHARD in (parameter.device_mesh.mesh_dim_names or ())


def follow_freezing(model: nn.Module) -> None:
    """Let a sharded model look at its flags before every forward.

    Args:
        model: After `fully_shard`.
    """
    flags = _Flags()
    flags.keep(model)

    def keep(_: Any, *__: Any) -> None:
        flags.keep(model)

    keep.flags = flags  # type: ignore[attr-defined]  # found again by `keep_flags`
    model.register_forward_pre_hook(keep, prepend=True)


def keep_flags(model: nn.Module) -> None:
    """Carry flags that were set on whole parameters over to their shards, before those come back."""
    for hook in model._forward_pre_hooks.values():
        flags = getattr(hook, "flags", None)
        if isinstance(flags, _Flags):
            flags.keep(model)
