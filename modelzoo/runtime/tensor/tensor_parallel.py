"""Computing one sample on several ranks: every matrix cut as the layers declare it (Shoeybi et al., 2019).

A layer says by `tensor_split` how its weights may be cut; nothing in it knows of ranks. Here its weights become DTensors over the
tensor axis, and its `forward` runs on this rank's part, with what has to be exchanged before and after:

    "column"      output features: the input's gradient is summed; outputs stay apart
    "row"         input features: outputs are summed, then the bias is added
    "vocabulary"  rows of a table: rows that another rank has are zero, then summed; scores are gathered, a loss stays apart
    "heads"       columns of a table of attention heads: nothing is exchanged
    a mapping     parameter name -> dimension: the input's gradient is summed, outputs are summed (experts)

Attributes that a module lists in `tensor_counts` (numbers of heads) are divided. Parts that it lists in `tensor_shared` (norms of
heads) keep whole weights, whose gradients are summed. Maps that it lists in `tensor_grouped` (key and value, whose heads are shared
by groups of query heads) are kept whole where their number does not divide; each rank picks the heads that its queries share. What
is attached to a map (an adapter) is cut with it (`local_view`). What declares nothing is computed by every rank alike, on whole
weights.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from modelzoo.errors import ConfigError, listing
from modelzoo.runtime.tensor.collectives import TensorAxis
from modelzoo.runtime.tensor.local_view import Local, Shared, cut_parameter, cut_parts, local_part_of

__all__ = ["split"]

_DIMS: dict[str, dict[str, int]] = {
    "column": {"weight": 0, "bias": 0},
    "row": {"weight": 1},
    "vocabulary": {"weight": 0, "bias": 0},
    "heads": {"weight": 1},
}
"""Kind of split -> parameter -> dimension that is cut; parameters left out stay whole."""


def split(model: nn.Module, mesh: DeviceMesh, axis: TensorAxis) -> None:
    """Cut every layer of a model that declares how, in place. Values may be on meta.

    Args:
        model: Before it is sharded.
        mesh: The tensor axis alone.
        axis: What the ranks of it exchange.

    Raises:
        ConfigError: No layer declares a split, a number of heads or features does not divide, or a module with other state of its
            own cannot be cut; all offenders are listed and nothing was changed.
    """
    grouped = _grouped_heads(model, axis)
    chosen = [
        (name, module) for name, module in model.named_modules() if _kind(module, axis.size) is not None and module not in grouped
    ]
    _check(model, chosen, axis.size)
    places: dict[int, nn.Parameter] = {}
    for _, module in chosen:
        kind = _kind(module, axis.size)
        assert kind is not None
        dims = dict(kind) if isinstance(kind, Mapping) else _DIMS[kind]
        for name, dim in dims.items():
            parameter = module._parameters.get(name)
            if parameter is not None and not isinstance(parameter, DTensor):
                if id(parameter) not in places:
                    places[id(parameter)] = cut_parameter(parameter, mesh, dim)
                module._parameters[name] = places[id(parameter)]
        _replace_forward(module, kind, axis)
        cut_parts(module, str(kind), mesh, axis)
    for module in grouped:
        cut_parts(module, "whole", mesh, axis)
    for module in list(model.modules()):
        _divide_heads(module, grouped, axis)


def _grouped_heads(model: nn.Module, axis: TensorAxis) -> dict[nn.Module, list[int]]:
    """Return the maps that stay whole because their heads do not divide, with the heads that this rank's query heads share."""
    found: dict[nn.Module, list[int]] = {}
    for each in model.modules():
        module: Any = each
        names = getattr(module, "tensor_grouped", ())
        if not names or module.num_key_value_heads % axis.size == 0 or module.num_heads % axis.size:
            continue
        count, group = module.num_heads // axis.size, module.num_heads // module.num_key_value_heads
        heads = [head // group for head in range(axis.rank * count, (axis.rank + 1) * count)]
        once = sorted(set(heads))
        is_even = heads == [head for head in once for _ in range(count // len(once))]
        found |= {getattr(module, name): once if is_even else heads for name in names}
    return found


def _divide_heads(module: Any, grouped: dict[nn.Module, list[int]], axis: TensorAxis) -> None:
    """Set a module's numbers of heads to those that are here, and sum the gradients of its parts that see those alone."""
    maps = [getattr(module, name) for name in getattr(module, "tensor_grouped", ())]
    heads = grouped.get(maps[0], []) if maps else []
    for part in maps if heads else ():
        part.forward = _Grouped(part, axis, heads, part.out_features // module.num_key_value_heads)
    for name in getattr(module, "tensor_counts", ()):
        is_picked = heads and name == "num_key_value_heads"
        setattr(module, name, len(heads) if is_picked else getattr(module, name) // axis.size)
    if hasattr(module, "heads_here"):
        count = module.num_key_value_heads
        module.heads_here = tuple(heads or range(axis.rank * count, (axis.rank + 1) * count))
    for name in getattr(module, "tensor_shared", ()):
        shared = getattr(module, name)
        for part in () if shared is None else shared.modules():
            if part._parameters:
                part.forward = Shared(part, axis)


def _kind(module: nn.Module, size: int) -> str | Mapping[str, int] | None:
    """Return how a module is cut; a table with fewer rows than ranks is left whole."""
    kind: str | Mapping[str, int] | None = getattr(module, "tensor_split", None)
    if kind == "vocabulary" and isinstance(module.weight, Tensor) and len(module.weight) < size:
        return None
    return kind


def _check(model: nn.Module, chosen: list[tuple[str, nn.Module]], size: int) -> None:
    if not chosen:
        raise ConfigError(
            f"parallel.tensor={size}: no layer of {type(model).__name__} declares how it is cut (`tensor_split`); build it from "
            "modelzoo.layers, or use parallel.data_shard"
        )
    problems = []
    for name, module in model.named_modules():
        for count in getattr(module, "tensor_counts", ()):
            is_grouped = count == "num_key_value_heads" and bool(getattr(module, "tensor_grouped", ()))
            if getattr(module, count) % size and not is_grouped:
                problems.append(f"{name}: {count}={getattr(module, count)} is not divisible by parallel.tensor={size}")
    for name, module in chosen:
        kind = _kind(module, size)
        if kind == "heads" and not isinstance(getattr(module, "weight", None), nn.Parameter):
            problems.append(f"{name}: {type(module).__name__} has no table of heads to cut; it cannot be used with parallel.tensor")
        if kind in ("column", "row") or isinstance(kind, Mapping):
            dims = dict(kind) if isinstance(kind, Mapping) else {"weight": _DIMS[str(kind)]["weight"]}
            for parameter, dim in dims.items():
                width = module.get_parameter(parameter).shape[dim]
                if width % size:
                    problems.append(f"{name}.{parameter}: {width} features are not divisible by parallel.tensor={size}")
    if problems:
        raise ConfigError(f"parallel.tensor={size} does not fit the model, nothing was cut:\n{listing(problems)}")


def _replace_forward(module: nn.Module, kind: str | Mapping[str, int], axis: TensorAxis) -> None:
    """Let a module compute on its part: on the instance, so that names, hooks and the class stay as they are."""
    layer: Any = module
    if isinstance(kind, Mapping):
        layer.forward = _Experts(layer, tuple(kind), axis)
    elif kind == "vocabulary":
        table = _Table(layer, axis)
        layer.vocabulary = table
        if hasattr(layer, "logits"):
            layer.forward, layer.logits = table, table.logits
        else:
            layer.forward = table.logits
    else:
        layer.forward = {"column": _Column, "row": _Row, "heads": _Heads}[kind](layer, axis)


class _Column:
    def __init__(self, module: Any, axis: TensorAxis) -> None:
        self._module, self._axis = module, axis

    def __call__(self, hidden: Tensor) -> Tensor:
        module = self._module
        local = Local(module, weight=local_part_of(module.weight), bias=local_part_of(module.bias))
        result: Tensor = type(module).forward(local, self._axis.enter(hidden))
        return result


class _Row:
    def __init__(self, module: Any, axis: TensorAxis) -> None:
        self._module, self._axis = module, axis

    def __call__(self, hidden: Tensor) -> Tensor:
        module = self._module
        part = type(module).forward(Local(module, weight=local_part_of(module.weight), bias=None), hidden)
        total = self._axis.leave(part)
        if module.bias is None:
            return total
        # on a slice of the tokens each rank adds the bias to its own
        return total + (self._axis.share(module.bias) if self._axis.is_in_region else module.bias)


class _Heads:
    def __init__(self, module: Any, axis: TensorAxis) -> None:
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        return type(module).forward(Local(module, weight=local_part_of(module.weight)), *args, **kwargs)


class _Grouped(Shared):
    """A map to heads that are whole on every rank, of which this rank's queries share some."""

    def __init__(self, module: Any, axis: TensorAxis, heads: list[int], head_size: int) -> None:
        super().__init__(module, axis)
        self._heads, self._head_size = heads, head_size

    def __call__(self, hidden: Tensor) -> Tensor:
        every = super().__call__(self._axis.enter(hidden)).unflatten(-1, (-1, self._head_size))
        picked: Tensor = every.index_select(-2, torch.tensor(self._heads, device=every.device)).flatten(-2)
        return picked


class _Experts:
    def __init__(self, module: Any, names: tuple[str, ...], axis: TensorAxis) -> None:
        self._module, self._names, self._axis = module, names, axis

    def __call__(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        module = self._module
        local = Local(module, **{name: local_part_of(getattr(module, name)) for name in self._names})
        return self._axis.leave(type(module).forward(local, self._axis.enter(rows), *args, **kwargs))


class _Table:
    """A table of the vocabulary of which this rank has some rows; also what `modelzoo.layers.Vocabulary` asks for."""

    def __init__(self, module: Any, axis: TensorAxis) -> None:
        self._module, self._axis = module, axis
        weight = module.weight
        assert isinstance(weight, DTensor)
        chunk = -(-weight.shape[0] // axis.size)
        starts = [min(chunk * rank, weight.shape[0]) for rank in range(axis.size)]
        self._sizes = [end - start for start, end in zip(starts, [*starts[1:], weight.shape[0]], strict=True)]
        self.start = starts[axis.rank]
        self.end = self.start + self._sizes[axis.rank]

    def __call__(self, ids: Tensor) -> Tensor:
        """Look rows up."""
        module = self._module
        is_own = (ids >= self.start) & (ids < self.end)
        padding = module.padding_idx
        own = padding - self.start if isinstance(padding, int) and self.start <= padding < self.end else None
        local = Local(module, weight=self.weight(), padding_idx=own)
        rows = type(module).forward(local, torch.where(is_own, ids - self.start, 0))
        return self._axis.leave(rows.masked_fill(~is_own.unsqueeze(-1), 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the whole vocabulary."""
        module = self._module
        local = Local(module, weight=self.weight(), bias=self.bias())
        method = type(module).logits if hasattr(module, "padding_idx") else type(module).forward
        return self._axis.gather(method(local, self._axis.enter(hidden)), self._sizes)

    def weight(self) -> Tensor:
        """Return the rows of this rank."""
        weight = local_part_of(self._module.weight)
        assert weight is not None
        return weight

    def bias(self) -> Tensor | None:
        """Return their biases."""
        return local_part_of(getattr(self._module, "bias", None))

    def enter(self, hidden: Tensor) -> Tensor:
        """Return `hidden`; its gradient is summed over the ranks."""
        return self._axis.enter(hidden)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        return self._axis.sum(values)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest over the ranks."""
        return self._axis.max(values)
