"""The state of a training run as named tensors, the same names and shapes on any number of ranks.

Names are those of the plain model: wrappers of compilation and recomputation leave no prefix. A tied parameter stands under its
first name. Sharded tensors are gathered one at a time, and put back by each rank reading its own rows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.errors import CheckpointError, listing
from modelzoo.runtime.tensors import TensorSpec, specs_of
from modelzoo.sharded import full_tensor, is_sharded, local_box, local_values

__all__ = ["RowReader", "full_state", "load_full_state", "load_optimizer_state", "model_tensors", "optimizer_tensors"]

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


class RowReader(Protocol):
    """Reads one stored tensor, whole or the rows from `start` to `end`."""

    def __call__(self, name: str, start: int | None = None, end: int | None = None) -> Tensor:
        """Return the tensor or those of its rows."""
        ...


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by their plain names, each tensor once, sharded ones as they are."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[_plain(name)] = tensor
    return tensors


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors as `kind/parameter name` (`exp_avg/head.output.weight`); none before the first step."""
    tensors = {}
    for name, parameter in _parameters(model).items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(float(value))
    return tensors


def full_state(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Give each tensor whole, one after the other; a sharded one is gathered when its turn comes. Collective.

    At most one gathered tensor is alive at a time, if the caller lets go of it.
    """
    for name, tensor in tensors.items():
        yield name, full_tensor(tensor.detach())


@torch.no_grad()
def load_full_state(model: nn.Module, stored: Mapping[str, TensorSpec], read: RowReader) -> None:
    """Fill a plain or sharded model in place; each rank reads its own rows.

    Args:
        model: As it was when saved, sharded over any number of ranks.
        stored: What there is to read.
        read: Reads it.

    Raises:
        CheckpointError: Names, shapes or dtypes differ; all of them are listed and nothing was changed.
    """
    tensors = model_tensors(model)
    _compare("model", specs_of(tensors), stored)
    for name, tensor in tensors.items():
        _fill(tensor, lambda start, end, name=name: read(name, start, end))  # type: ignore[misc]  # bound in the same turn


@torch.no_grad()
def load_optimizer_state(model: nn.Module, optimizer: Optimizer, stored: Mapping[str, TensorSpec], read: RowReader) -> None:
    """Give the optimizer its moments and step counts back; an empty state (no step was taken yet) is one too.

    Args:
        model: Whose parameters the optimizer has.
        optimizer: Fresh, over the same parameters.
        stored: What there is to read, as `kind/parameter name`.
        read: Reads it.

    Raises:
        CheckpointError: A moment belongs to no trained parameter, or has another shape or dtype than it; or a parameter has some of
            the kinds only. All are listed and nothing was changed.
    """
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: p for name, p in _parameters(model).items() if id(p) in groups}
    _check_moments(parameters, stored)
    optimizer.state.clear()
    for key in stored:
        kind, name = key.split("/", 1)
        parameter = parameters[name]
        if stored[key].shape == ():
            # fused optimizers count their steps where the parameter is, others on the CPU
            beside = groups[id(parameter)].get("fused") or groups[id(parameter)].get("capturable")
            value = read(key).to(parameter.device) if beside else read(key)
        else:
            value = torch.empty_like(parameter, memory_format=torch.preserve_format)
            _fill(value, lambda start, end, key=key: read(key, start, end))  # type: ignore[misc]  # bound in the same turn
        optimizer.state[parameter][kind] = value


def _check_moments(parameters: Mapping[str, nn.Parameter], stored: Mapping[str, TensorSpec]) -> None:
    problems = []
    kinds: dict[str, set[str]] = {}
    for key, spec in stored.items():
        kind, _, name = key.partition("/")
        kinds.setdefault(name, set()).add(kind)
        if name not in parameters:
            problems.append(f"optimizer/{key}: expected a trained parameter of this name, found none; was it frozen since?")
            continue
        expected = TensorSpec(tuple(parameters[name].shape), parameters[name].dtype)
        if spec.shape not in (expected.shape, ()):
            problems.append(f"optimizer/{key}: expected shape {list(expected.shape)}, found {list(spec.shape)}")
        elif spec.dtype != expected.dtype:
            problems.append(f"optimizer/{key}: expected {expected.dtype_name}, found {spec.dtype_name}")
    every = set().union(*kinds.values())
    for name, some in kinds.items():
        if some != every:
            problems.append(f"optimizer: {name}: expected {sorted(every)}, found {sorted(some)}")
    _refuse(problems)


def _compare(kind: str, expected: Mapping[str, TensorSpec], found: Mapping[str, TensorSpec]) -> None:
    problems = [f"{kind}/{name}: missing from the checkpoint" for name in expected if name not in found]
    problems += [f"{kind}/{name}: the model has no such tensor" for name in found if name not in expected]
    for name in expected:
        if name in found and found[name].shape != expected[name].shape:
            problems.append(f"{kind}/{name}: expected shape {list(expected[name].shape)}, found {list(found[name].shape)}")
        elif name in found and found[name].dtype != expected[name].dtype:
            problems.append(f"{kind}/{name}: expected {expected[name].dtype_name}, found {found[name].dtype_name}")
    _refuse(problems)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise CheckpointError(f"the checkpoint does not fit the model, nothing was loaded:\n{listing(problems)}")


def _fill(tensor: Tensor, read: Callable[[int | None, int | None], Tensor]) -> None:
    if not is_sharded(tensor):
        tensor.copy_(read(None, None))
        return
    rows, *others = local_box(tensor)
    if rows.stop > rows.start:
        local_values(tensor).copy_(read(rows.start, rows.stop)[(slice(None), *others)])


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {_plain(name): parameter for name, parameter in model.named_parameters()}


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
