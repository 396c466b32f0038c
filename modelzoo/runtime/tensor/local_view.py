"""A module seen with this rank's part of its parameters, so that its own methods compute on that part.

What is attached to a map (an adapter) declares by `tensor_parts` which of its parameters are cut with the map, as kind of the map's
cut -> parameter -> dimension. Its other parameters stay whole and see other values on each rank: their gradients are summed.
"""

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from modelzoo.runtime.tensor.collectives import TensorAxis
from modelzoo.sharded import local_box

__all__ = ["Local", "Shared", "cut_parameter", "cut_parts", "local_part_of"]


def cut_parameter(parameter: nn.Parameter, mesh: DeviceMesh, dim: int) -> nn.Parameter:
    """Return a parameter that is a DTensor over the tensor axis, with this rank's part of the values."""
    shape, stride = parameter.shape, parameter.stride()
    whole = DTensor.from_local(torch.empty(shape, device="meta"), mesh, [Replicate()], run_check=False)
    boxes = DTensor.from_local(torch.empty(0, device="meta"), mesh, [Shard(dim)], run_check=False, shape=whole.shape, stride=stride)
    local = parameter.detach()[local_box(boxes)].clone(memory_format=torch.contiguous_format)
    cut = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False, shape=shape, stride=stride)
    return nn.Parameter(cut, requires_grad=parameter.requires_grad)


def cut_parts(module: nn.Module, kind: str, mesh: DeviceMesh, axis: TensorAxis) -> None:
    """Cut what is attached to a map as it declares for the map's own cut, in place.

    Args:
        module: The map.
        kind: How it was cut; a word that no part knows leaves them whole.
        mesh: The tensor axis alone.
        axis: What its ranks exchange.
    """
    for child in module.children():
        part: Any = child
        declared: Mapping[str, Mapping[str, int]] | None = getattr(part, "tensor_parts", None)
        if declared is None:
            continue
        for name, dim in declared.get(kind, {}).items():
            if part._parameters.get(name) is not None:
                part._parameters[name] = cut_parameter(part._parameters[name], mesh, dim)
        part.forward = _Part(part, axis, sums_parts=kind == "row")


class Local:
    """A module seen with this rank's part of its parameters: its methods run on those."""

    def __init__(self, module: nn.Module, **values: Any) -> None:
        self.__dict__.update(values, _module=module)

    def __getattr__(self, name: str) -> Any:
        found = getattr(type(self._module), name, None)
        if isinstance(found, FunctionType):
            return MethodType(found, self)
        return getattr(self._module, name)


def local_part_of(parameter: Tensor | None) -> Tensor | None:
    """Return this rank's part of a cut parameter, or the parameter itself."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class Shared:
    """A part on whole weights that sees other values on each rank."""

    def __init__(self, module: Any, axis: TensorAxis) -> None:
        self._module, self._axis = module, axis

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the part's own forward."""
        module = self._module
        own = {name: self._axis.share(each) for name, each in module.named_parameters(recurse=False)}
        return type(module).forward(Local(module, **own), *args, **kwargs)


class _Part(Shared):
    """What is attached to a map: it computes on its part beside the map, inside what is exchanged for that."""

    def __init__(self, module: Any, axis: TensorAxis, *, sums_parts: bool) -> None:
        super().__init__(module, axis)
        self._others = {"sum_parts": axis.sum} if sums_parts else {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, axis = self._module, self._axis
        own = {
            name: each.to_local() if isinstance(each, DTensor) else axis.share(each)
            for name, each in module.named_parameters(recurse=False)
        }
        return type(module).forward(Local(module, **own, **self._others), *args, **kwargs)
