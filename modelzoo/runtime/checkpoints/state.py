"""The state of a training run as named tensors, the same names and shapes on any number of ranks.

Names are those of the plain model: wrappers of compilation and recomputation leave no prefix. A tied parameter stands under its
first name. Each rank saves the part of a sharded tensor that it holds, and reads the part that it needs.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.errors import CheckpointError, listing
from modelzoo.runtime.checkpoints.tensors import TensorSpec, specs_of
from modelzoo.sharded import full_tensor, held, is_away, is_sharded, local_box, write_local

__all__ = [
    "BoxReader",
    "check_model",
    "check_optimizer",
    "full_state",
    "load_full_state",
    "load_optimizer_state",
    "model_tensors",
    "optimizer_tensors",
]

log = logging.getLogger(__name__)

SHOWN = 10
"""Names in a message; there may be hundreds."""
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


class BoxReader(Protocol):
    """Copies one stored tensor, or a box of it, into a plain tensor."""

    def __call__(self, name: str, target: Tensor, box: Sequence[slice] | None = None) -> None:
        """Fill `target` with the box, one slice a dimension, or with the whole."""
        ...


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by their plain names, each tensor once, sharded ones as they are.

    Those that a model names in `found_elsewhere` are left out: frozen values of a base that is read again.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    elsewhere: frozenset[str] = getattr(model, "found_elsewhere", frozenset())
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            if _plain(name) not in elsewhere:
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
        yield name, full_tensor(tensor).detach()


def check_model(model: nn.Module, stored: Mapping[str, TensorSpec]) -> None:
    """Compare names, shapes and dtypes of a model's tensors with the stored ones.

    Raises:
        CheckpointError: They differ; all differences are listed.
    """
    _compare("model", specs_of(model_tensors(model)), stored)


def check_optimizer(model: nn.Module, optimizer: Optimizer, stored: Mapping[str, TensorSpec]) -> None:
    """Compare stored moments with the parameters that the optimizer has, and the frozen ones that it may have had.

    Raises:
        CheckpointError: A moment belongs to no trained parameter, or has another shape or dtype than it; or a parameter has some of
            the kinds only. All are listed.
    """
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: p for name, p in _parameters(model).items() if id(p) in trained or not p.requires_grad}
    shapes = getattr(optimizer, "state_shapes", None)  # an optimizer whose state is not shaped like its parameters says how
    own = (
        {name: {kind: TensorSpec(*facts) for kind, facts in shapes(p).items()} for name, p in parameters.items()} if shapes else {}
    )
    problems = []
    kinds: dict[str, set[str]] = {}
    for key, spec in stored.items():
        kind, _, name = key.partition("/")
        kinds.setdefault(name, set()).add(kind)
        if name not in parameters:
            problems.append(f"optimizer/{key}: expected a trained parameter of this name, found none; was it left out since?")
            continue
        expected = own[name].get(kind) if own else TensorSpec(tuple(parameters[name].shape), parameters[name].dtype)
        if expected is None:
            problems.append(f"optimizer/{key}: expected one of {', '.join(sorted(own[name]))}; was it saved by another optimizer?")
        elif spec.shape not in (expected.shape, ()):
            problems.append(f"optimizer/{key}: expected shape {list(expected.shape)}, found {list(spec.shape)}")
        elif spec.dtype != expected.dtype and spec.shape == expected.shape:
            problems.append(f"optimizer/{key}: expected {expected.dtype_name}, found {spec.dtype_name}")
    every = set().union(*kinds.values())
    for name, some in kinds.items():
        wanted = set(own[name]) if own and name in own else every
        if some != wanted:
            problems.append(f"optimizer: {name}: expected {sorted(wanted)}, found {sorted(some)}")
    _refuse(problems)


@torch.no_grad()
def load_full_state(model: nn.Module, stored: Mapping[str, TensorSpec], read: BoxReader) -> None:
    """Fill a plain or sharded model in place; each rank reads its own part.

    Args:
        model: As it was when saved, sharded over any number of ranks.
        stored: What there is to read.
        read: Reads it.

    Raises:
        CheckpointError: Names, shapes or dtypes differ; all of them are listed and nothing was changed.
    """
    check_model(model, stored)
    for name, tensor in model_tensors(model).items():
        _fill(name, tensor, read)


@torch.no_grad()
def load_optimizer_state(model: nn.Module, optimizer: Optimizer, stored: Mapping[str, TensorSpec], read: BoxReader) -> None:
    """Give the optimizer its moments and step counts back; an empty state (no step was taken yet) is one too.

    Moments of a parameter that was frozen since (`requires_grad` False, not in the optimizer) are kept and named in the log.

    Args:
        model: Whose parameters the optimizer has.
        optimizer: Fresh, over the same parameters.
        stored: What there is to read, as `kind/parameter name`.
        read: Reads it.

    Raises:
        CheckpointError: A moment belongs to no trained parameter, or has another shape or dtype than it; or a parameter has some of
            the kinds only. All are listed and nothing was changed.
    """
    check_optimizer(model, optimizer, stored)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    parameters = _parameters(model)
    _name_kept([name for name, p in parameters.items() if id(p) not in groups], stored)
    optimizer.state.clear()
    for key, spec in stored.items():
        kind, name = key.split("/", 1)
        parameter = parameters[name]
        group = groups.get(id(parameter), {})
        if spec.shape == ():
            value = torch.empty((), dtype=spec.dtype)
            _fill(key, value, read)
            # fused optimizers count their steps where the parameter is, others on the CPU
            is_beside = group.get("fused") or group.get("capturable") or kind != "step"
            value = value.to(parameter.device) if is_beside else value
        else:
            moment = getattr(optimizer, "moment", None)
            # an optimizer over the tiers knows where its moments live, one of eight bits what they are
            value = torch.empty_like(parameter) if moment is None else moment(parameter, kind)
            _fill(key, value, read)
        optimizer.state[parameter][kind] = value


def _name_kept(frozen: Sequence[str], stored: Mapping[str, TensorSpec]) -> None:
    """Say which moments belong to parameters that are not trained any more; they stay part of every later checkpoint."""
    kept = [name for name in frozen if any(key.split("/", 1)[1] == name for key in stored)]
    if kept:
        log.warning("moments of %d parameters that are frozen now are kept: %s", len(kept), ", ".join(kept[:SHOWN]))


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


def _fill(name: str, tensor: Tensor, read: BoxReader) -> None:
    local = held(tensor)
    values = torch.empty(local.shape, dtype=local.dtype) if is_away(tensor) else local.detach()
    if values.numel():
        read(name, values, local_box(tensor) if is_sharded(tensor) else None)
    if is_away(tensor):
        write_local(tensor, values)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {_plain(name): parameter for name, parameter in model.named_parameters()}


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
