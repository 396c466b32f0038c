"""The units of a model: the blocks that are sharded, recomputed and compiled one by one, and the parameters that tie them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from torch import nn

from modelzoo.errors import ConfigError

__all__ = ["find_ties", "find_units", "holds_any"]


def find_units(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of any model, in forward order.

    They are the model's own `shard_units()`; without that, the modules of every `nn.ModuleList` or `nn.Sequential` in which one
    class with parameters stands more than once, the outermost first: Hugging Face's encoder and decoder layers. None for a model
    without such lists, which is then one unit.
    """
    declared = getattr(model, "shard_units", None)
    if declared is not None:
        return list(cast(Callable[[], Sequence[nn.Module]], declared)())
    units: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        kinds = Counter(type(child) for child in module if next(child.parameters(), None) is not None)
        repeated = [child for child in module if kinds[type(child)] > 1 and len(list(child.children())) > 0]
        for unit in repeated:
            units.append(unit)
            inside.update(id(each) for each in unit.modules())
    return units


def find_ties(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that more than one module uses.

    Raises:
        ConfigError: Two parameters are declared tied, but are two tensors.
    """
    declared = getattr(model, "tied_parameters", None)
    ties = []
    for first, second in cast(Callable[[], Sequence[tuple[str, str]]], declared)() if declared is not None else []:
        parameter = model.get_parameter(first)
        modules = dict(model.named_modules())
        if second not in modules and parameter is not model.get_parameter(second):
            raise ConfigError(f"{first} and {second} are declared tied, but are two tensors; assign one to the other first")
        ties.append(parameter)
    owners = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    known = {id(parameter) for parameter in ties}
    return ties + [parameter for parameter in model.parameters() if owners[id(parameter)] > 1 and id(parameter) not in known]


def holds_any(unit: nn.Module, parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether a unit holds any of the parameters; tied ones belong to the last group, whole while any module runs."""
    owned = {id(parameter) for parameter in unit.parameters()}
    return any(id(parameter) in owned for parameter in parameters)
