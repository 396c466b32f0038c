"""Sharding a model over the ranks with PyTorch's own `fully_shard`, and the gradient norm that is right under it.

The order of the runtime is: build, shard, then optimizer. Gradients are added up over the ranks, never averaged: the loop owns the
denominator, because only it knows how many targets the whole batch has.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from modelzoo.errors import ConfigError
from modelzoo.runtime.process import World

__all__ = ["clip_grad_norm", "full_tensor", "local_rows", "reshard", "shard"]


def shard(model: nn.Module, world: World) -> nn.Module:
    """Shard the parameters of `model` in place over all ranks and return it; does nothing but move it on one process.

    The units of `model.shard_units()` are sharded one by one in forward order, and what is left (embeddings, norms, heads) with the
    model itself. Tied parameters must be in one group: a unit that holds one is left to the last group. A model without
    `shard_units` is one group.

    Args:
        model: Built and filled, the same on every rank; float32, as trained parameters are always stored.
        world: The processes.

    Raises:
        ConfigError: A parameter is not float32, or a declared tie is not one tensor.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(f"{name}: trained parameters are stored in float32, found {parameter.dtype}; use model.float()")
    ties = _ties(model)
    model.to(world.device)
    if world.world_size == 1:
        return model
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    for unit in _units(model):
        if not _holds_any(unit, ties):
            fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no pre-multiplied sum; a plain sum is exact on every backend
            module.set_force_sum_reduction_for_comms(True)
    return model


def reshard(model: nn.Module) -> None:
    """Put every unit's parameters back into their shards, as after a forward without a backward; does nothing to a plain model.

    `fully_shard` leaves the last group gathered after a forward. Its values would be stale once the shards are written to.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor of a sharded one, the tensor itself otherwise. Collective for sharded tensors."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: DTensor) -> tuple[int, int]:
    """Return the first row of the whole tensor that this rank holds, and the one after its last.

    Raises:
        ConfigError: The tensor is not sharded over its first dimension by one mesh axis, as `fully_shard` does.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.ndim != 1 or not placements[0].is_shard(0):
        raise ConfigError(f"placements {placements} on a mesh of {mesh.ndim} axes: expected rows over one axis; use shard()")
    step = math.ceil(tensor.shape[0] / mesh.size())
    start = min(mesh.get_local_rank() * step, tensor.shape[0])
    return start, min(start + step, tensor.shape[0])


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradients so that their global norm is at most `max_norm`, and return the norm before that.

    The norm is that of all gradients of the whole model, sharded or not, so it is the same on every rank. A norm that is not finite
    is returned and nothing is scaled. Collective for sharded parameters.

    Args:
        parameters: Those whose `.grad` counts; parameters without one are left out.
        max_norm: Above 0, or None to measure only.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [cast(Tensor, parameter.grad) for parameter in trained]
    if not gradients:
        return 0.0
    groups: list[list[Tensor]] = [
        [g for g in gradients if isinstance(g, DTensor)],
        [g for g in gradients if not isinstance(g, DTensor)],
    ]
    norms = [full_tensor(nn.utils.get_total_norm(group)) for group in groups if group]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if max_norm is not None and bool(torch.isfinite(total)):
        for sharded in (True, False):
            some = [parameter for parameter in trained if isinstance(parameter.grad, DTensor) is sharded]
            nn.utils.clip_grads_with_norm_(some, max_norm, total)
    return float(total)


def _units(model: nn.Module) -> Sequence[nn.Module]:
    units = getattr(model, "shard_units", None)
    return cast(Callable[[], Sequence[nn.Module]], units)() if units is not None else []


def _ties(model: nn.Module) -> list[nn.Parameter]:
    """Return the tied parameters; each is declared with its other name, or with the other module that uses it."""
    declared = getattr(model, "tied_parameters", None)
    ties = []
    for first, second in cast(Callable[[], Sequence[tuple[str, str]]], declared)() if declared is not None else []:
        parameter = model.get_parameter(first)
        modules = dict(model.named_modules())
        if second not in modules and parameter is not model.get_parameter(second):
            raise ConfigError(f"{first} and {second} are declared tied, but are two tensors; assign one to the other first")
        ties.append(parameter)
    return ties


def _holds_any(unit: nn.Module, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether `unit` holds any of the parameters: tied ones belong to the last group, which is whole while any module runs."""
    owned = {id(parameter) for parameter in unit.parameters()}
    return any(id(parameter) in owned for parameter in parameters)
