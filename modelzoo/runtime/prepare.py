"""Making any module run on many processes: cut, recompute, compile, shard, in this order, and it stays a plain module.

    meta or filled -> tensor parallel -> recompute -> compile -> shard -> `materialise` and load (a model that was built on meta)

Gradients are added up over the ranks, never averaged: the caller owns the denominator, because only it knows how many targets the
whole batch has.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import ConfigError
from modelzoo.runtime.axes import REPLICATE, SHARD, TENSOR, build_mesh, needs_mesh, resolve
from modelzoo.runtime.exchange.counted import count_traffic
from modelzoo.runtime.exchange.traffic import StepClock, Traffic
from modelzoo.runtime.freezing import follow_freezing, keep_flags
from modelzoo.runtime.process import World
from modelzoo.runtime.recompute import recompute
from modelzoo.runtime.tensor.collectives import TensorAxis
from modelzoo.runtime.tensor.sequence_parallel import slice_tokens
from modelzoo.runtime.tensor.tensor_parallel import split
from modelzoo.runtime.units import find_ties, find_units, holds_any
from modelzoo.runtime.usage import note_usage
from modelzoo.sharded import is_away, is_sharded, write_whole

__all__ = ["Prepared", "accumulating", "materialise", "prepare", "prepared", "reshard"]

log = logging.getLogger(__name__)

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` decided for a model."""

    config: ParallelConfig
    """With every `auto` decided."""
    units: tuple[nn.Module, ...]
    """The blocks that are sharded one by one, in forward order."""
    mesh: DeviceMesh | None
    """The grid of ranks; None on one process that needs none."""
    traffic: Traffic
    """What was exchanged since the model was prepared."""
    clock: StepClock
    """Where the time of its steps went."""
    for_tiers: bool = False
    """Whether values will leave memory, so that blocks give theirs back after every use."""


_PREPARED: WeakKeyDictionary[nn.Module, Prepared] = WeakKeyDictionary()


def prepare(
    model: nn.Module,
    world: World,
    config: ParallelConfig | None = None,
    *,
    units: Sequence[nn.Module] | None = None,
    for_tiers: bool = False,
) -> nn.Module:
    """Lay a model out over the ranks, in place, and return it: the same class, names and forward. Collective.

    Any module will do, also one of Hugging Face; keyword arguments, state dict names and freezing stay as they are. Parameters
    outside every unit are sharded with the model itself, and so are tied ones. A model on meta gets its memory by `materialise`.

    Args:
        model: The same on every rank; trained parameters are float32.
        world: The processes.
        config: How; None shards over all of them.
        units: The blocks to shard, recompute and compile one by one; None finds them (`find_units`).
        for_tiers: Whether values will leave memory (`modelzoo.runtime.tiers`): blocks then give theirs back between forward and
            backward, sharded or, on one process, in place.

    Raises:
        ConfigError: The config does not fit the ranks or the model, a parameter is not float32, a declared tie is not one tensor,
            or the model was prepared before. Nothing was changed.
    """
    if model in _PREPARED:
        raise ConfigError(f"{type(model).__name__} was prepared before; build it again to lay it out in another way")
    _check_dtypes(model)
    config = resolve(config or ParallelConfig(), world, model)
    ties = find_ties(model)
    blocks = find_units(model) if units is None else list(units)
    traffic = Traffic()
    is_cut = needs_mesh(config, world.world_size, for_tiers=for_tiers)
    mesh = build_mesh(config, world.joined()) if is_cut else None
    if mesh is not None and config.tensor > 1:
        axis = TensorAxis(mesh.get_group(TENSOR), traffic)
        split(model, mesh[TENSOR], axis)
        slice_tokens(model, blocks, axis)
        ties = find_ties(model)
    world.tensor_size = config.tensor
    recompute(blocks, config.recompute)
    if config.compile:
        for block in blocks:
            block.compile()
    if not _is_on_meta(model):
        model.to(world.device)
    if mesh is not None:
        _shard(model, [block for block in blocks if not holds_any(block, ties)], mesh, config, frees_blocks=for_tiers)
        count_traffic(model, mesh, traffic)
        follow_freezing(model)
        if not for_tiers:
            note_usage(model)
    _PREPARED[model] = Prepared(config, tuple(blocks), mesh, traffic, StepClock(), for_tiers)
    return model


def prepared(model: nn.Module) -> Prepared:
    """Return what `prepare` decided; for a model that was never prepared, that of one process."""
    known = _PREPARED.get(model)
    return known or Prepared(ParallelConfig(data_shard=1, zero=0), tuple(find_units(model)), None, Traffic(), StepClock())


def materialise(model: nn.Module, device: torch.device, *, modules: Sequence[nn.Module] | None = None) -> None:
    """Give a prepared model that was built on meta its memory; values come from a checkpoint and from `init_weights`.

    `to_empty` alone would part tied parameters. A layer's `init_weights` fills this rank's part of the values that one process
    would draw, because it draws them whole, one layer at a time.

    Args:
        model: After `prepare`.
        device: Where to.
        modules: Those whose own parameters get memory now, every user of a tied one among them; None is all.
    """
    chosen = list(model.modules()) if modules is None else modules
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in chosen:
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module, name))
    for module in reversed(chosen):  # a unit after its parts: `fully_shard` then looks at what they have become
        module.to_empty(device=device, recurse=False)
    for (first, own), *others in owners.values():
        for module, name in others:
            module._parameters[name] = first._parameters[own]
    if hasattr(model, "fill"):
        setattr(model, "fill", _fill_whole)  # noqa: B010  # a method of its class, which nn.Module does not declare
    is_cut = prepared(model).mesh is not None or prepared(model).for_tiers
    for module in chosen:
        layer: Any = module
        if layer is not model and is_cut and hasattr(layer, "init_weights"):
            layer.init_weights = partial(_init_whole, layer, layer.init_weights)


def reshard(model: nn.Module) -> None:
    """Put every unit's parameters back into their shards, as after a forward without a backward; does nothing to a plain model.

    `fully_shard` leaves the last group gathered after a forward. Its values would be stale once the shards are written to.
    """
    keep_flags(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def accumulating(model: nn.Module, *, is_last: bool) -> None:
    """Say before a micro-batch whether it is the step's last one.

    Below ZeRO level 2 gradients are whole until then, and added up over the ranks once a step; from level 2 on they are cut after
    every micro-batch. Below level 3 parameters stay whole until the last one's backward. With tiers gradients are added up and cut
    after every micro-batch at all levels, and added where they live: what waited would lie beside the budget.

    Args:
        model: Prepared or plain; a plain one needs nothing.
        is_last: Whether the optimizer steps after this micro-batch.
    """
    if not isinstance(model, FSDPModule) or prepared(model).for_tiers:
        return
    zero = prepared(model).config.zero
    assert zero != "auto"
    if zero < 2:
        model.set_requires_gradient_sync(is_last)
    else:
        model.set_requires_all_reduce(is_last)
    if zero < 3:
        model.set_reshard_after_backward(is_last)


def _check_dtypes(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(f"{name}: trained parameters are stored in float32, found {parameter.dtype}; use model.float()")


def _is_on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def _shard(model: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, config: ParallelConfig, *, frees_blocks: bool) -> None:
    """Shard the blocks one by one and what is left with the model, with one engine for all ZeRO levels."""
    dtype = DTYPES[config.precision]
    options: dict[str, Any] = {
        "mesh": mesh[REPLICATE, SHARD] if config.data_replicate > 1 else mesh[SHARD],
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32),
        # stored in fewer bits, which cannot be cut: whole on every rank
        "ignored_params": {module.weight for module in model.modules() if getattr(module, "keep_weight", None) is not None},
    }
    # logits are a view of packed ones; the warning is about changing an output in place, which nothing here does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for block in blocks:
        fully_shard(block, reshard_after_forward=config.zero == 3 or frees_blocks, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.register_forward_hook(_check_output)
            # gloo has no pre-multiplied sum; a plain sum is exact on every backend
            module.set_force_sum_reduction_for_comms(True)


def _check_output(module: nn.Module, args: Any, output: Any) -> None:
    """Refuse an output in which torch finds no tensor: it would never add the gradients up.

    Raises:
        ConfigError: The forward returned something else than tensors in tuples, lists, dicts and dataclasses.
    """
    if torch.is_grad_enabled() and not _holds_tensor(output):
        name = type(module).__name__.removeprefix("FSDP")
        raise ConfigError(
            f"{name}: its forward returned a {type(output).__name__}, in which no tensor is found; return a tensor, or tensors in "
            "a tuple, list, dict or dataclass, so that gradients can be added up over the ranks"
        )


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_holds_tensor, value))
    if is_dataclass(value):
        return any(_holds_tensor(getattr(value, each.name)) for each in fields(value))
    return isinstance(value, Tensor)


@torch.no_grad()
def _fill_whole(parameter: nn.Parameter, initialise: Callable[[Tensor], object]) -> None:
    """Let a function fill a parameter whole, on the CPU as one process does, and keep this rank's part of it, wherever it lives."""
    if not is_sharded(parameter) and not is_away(parameter):
        initialise(parameter)
        return
    whole = torch.empty(parameter.shape, dtype=parameter.dtype)
    initialise(whole)
    write_whole(parameter, whole)


@torch.no_grad()
def _init_whole(module: nn.Module, initialise: Callable[..., None], *args: Any) -> None:
    """Draw a layer's values whole, on the CPU as one process does, and keep this rank's part of them, wherever it lives."""
    own = dict(module.named_parameters(recurse=False))
    whole = {name: nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)) for name, parameter in own.items()}
    try:
        module._parameters.update(whole)
        initialise(*args)
    finally:
        module._parameters.update(own)
    for name, parameter in own.items():
        write_whole(parameter, whole[name])
