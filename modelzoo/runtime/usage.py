"""Parameters that a step uses on some ranks and not on others: every rank sends a gradient for them, and nobody for those unused.

`fully_shard` adds up the gradients of a unit in one message. Where ranks take different branches their messages would hold other
parameters, and gradients would be added to those of others. So all of them are sent, with zeros for what a rank did not use. A
parameter that no rank used has no gradient on one process, and an optimizer leaves it alone: its zeros are taken away again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.runtime.lost import in_collective
from modelzoo.sharded import is_sharded

__all__ = ["drop_unused", "note_usage"]


class _Use:
    """Whether this rank used a parameter since its gradient was last looked at."""

    def __init__(self) -> None:
        self.is_used = False
        self.noted: nn.Parameter | None = None
        """The whole parameter that tells."""

    def note(self, _: Tensor) -> None:
        self.is_used = True


def note_usage(model: nn.Module) -> None:
    """Let every unit of a sharded model send all of its gradients, and note which of its parameters this rank used.

    Args:
        model: After `fully_shard`.
    """
    assert isinstance(model, FSDPModule)
    model.set_reduce_scatter_unused_params(True)
    uses: dict[tuple[nn.Module, str], _Use] = {}
    taken: set[int] = set()
    for unit in reversed([module for module in model.modules() if isinstance(module, FSDPModule)]):
        assert isinstance(unit, nn.Module)
        own = [module for module in unit.modules() if id(module) not in taken]
        taken.update(id(module) for module in own)
        unit.register_forward_pre_hook(partial(_watch, own, uses))
    model.register_forward_pre_hook(partial(_attach, list(model.modules()), uses), prepend=True)


def drop_unused(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Take the gradients of parameters away that no rank used, and return the others. Collective for sharded parameters.

    Args:
        parameters: With gradients, the same on every rank.
    """
    uses: list[_Use | None] = [getattr(parameter, "use", None) for parameter in parameters]
    if not any(uses):
        return list(parameters)
    flags = torch.tensor([use is None or use.is_used for use in uses], dtype=torch.uint8, device=parameters[0].device)
    if dist.get_world_size() > 1:
        with in_collective("which parameters were used"):
            dist.all_reduce(flags, dist.ReduceOp.MAX)
    kept = []
    for parameter, use, is_used in zip(parameters, uses, flags.tolist(), strict=True):
        if use is not None:
            use.is_used = False
        if is_used:
            kept.append(parameter)
        else:
            parameter.grad = None
    return kept


def _attach(modules: Sequence[nn.Module], uses: dict[tuple[nn.Module, str], _Use], *_: Any) -> None:
    """Hang each note onto the shard whose gradient it is about."""
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and is_sharded(parameter) and not hasattr(parameter, "use"):
                parameter.use = uses.setdefault((module, name), _Use())  # type: ignore[attr-defined]  # read by drop_unused


def _watch(modules: Sequence[nn.Module], uses: dict[tuple[nn.Module, str], _Use], *_: Any) -> None:
    """Ask the whole parameters of a unit, which are there now, to tell when they get a gradient."""
    if not torch.is_grad_enabled():
        return
    for module in modules:
        for name, parameter in module._parameters.items():
            use = uses.get((module, name))
            if use is not None and parameter is not None and parameter.requires_grad and use.noted is not parameter:
                parameter.register_post_accumulate_grad_hook(use.note)
                use.noted = parameter
