"""From budgets to tiers: which values of which block live where, and the engine on a prepared model."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.config.memory import MemoryConfig, parse_size
from modelzoo.errors import ConfigError
from modelzoo.runtime.axes import SHARD
from modelzoo.runtime.memory import free_bytes, give_back_at_once, resident_bytes, total_bytes
from modelzoo.runtime.prepare import prepared
from modelzoo.runtime.process import World
from modelzoo.runtime.recompute import keep_inputs
from modelzoo.runtime.tiers.direct_file import DirectFile
from modelzoo.runtime.tiers.engine import Tiers
from modelzoo.runtime.tiers.folder import TierFolder, sweep_ranks
from modelzoo.runtime.tiers.inputs import Inputs
from modelzoo.runtime.tiers.placement import Placement, Sizes, place_units
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.unit import Place, Unit, aligned, lay_down, open_regions
from modelzoo.sharded import held, is_sharded, padded_shape

__all__ = ["attach_tiers", "budget_bytes", "sizes_of", "tiers_of"]

AUTO_SHARE = 0.85
"""Of what is free, what `auto` takes."""
_TIERS: WeakKeyDictionary[nn.Module, Tiers] = WeakKeyDictionary()


def attach_tiers(
    model: nn.Module,
    world: World,
    memory: MemoryConfig,
    *,
    reserved_bytes: int = 0,
    placement: Placement | None = None,
    is_filled: bool = True,
    inputs_bytes: int = 0,
) -> Tiers:
    """Let a model's values live in the tiers; `TieredAdamW` is its optimizer from then on.

    Args:
        model: After `prepare` and with its values, sharded (`ParallelConfig` with tiers shards on one process too).
        world: The processes.
        memory: Budgets of a process, and when updates are carried out.
        reserved_bytes: What activations and everything else beside the model take of the memory budget.
        placement: Instead of the one that the budget gives.
        is_filled: Whether the parameters have values yet; False where they are loaded next.
        inputs_bytes: Of blocks' inputs that will wait on disk (`memory.activations: offload`), for which room is looked for.

    Raises:
        ConfigError: The budget is too small or larger than the machine, or the folder is in use; the message says what would do.
        SaveError: The disk tier cannot be made.
    """
    if world.device.type != "cpu":
        raise ConfigError(
            f"memory: tiers move values between this machine's memory and its disk; found a model on {world.device.type}, whose "
            "tiers are not built yet: remove the section, or use more ranks"
        )
    offloads = memory.activations == "offload"
    if offloads:
        _check_offload(model, memory)
    budget = budget_bytes(memory, world)
    if budget is not None:
        give_back_at_once()
    if placement is None:
        placement = place_units(
            sizes_of(model),
            budget_bytes=None if budget is None else budget - reserved_bytes,
            has_disk=memory.disk.path is not None,
            slots=memory.slots,
            how=memory.placement,
            when=memory.optimizer_update,
            ranks=world.data_size,
            reserved_bytes=reserved_bytes,
        )
    needed = placement.disk_bytes + (max(inputs_bytes, 1) if offloads else 0)
    tiers = _TIERS[model] = _open(_groups(model), placement, world, memory, needed, is_filled=is_filled)
    keep_inputs(prepared(model).units, None if tiers.inputs is None else tiers.inputs.hooks)
    return tiers


def tiers_of(model: nn.Module) -> Tiers | None:
    """Return the tiers of a model, if it has any."""
    return _TIERS.get(model)


def sizes_of(model: nn.Module) -> list[Sizes]:
    """Return the sizes of a prepared model's units on this rank, what is in no block last."""
    return [_sizes(name, own, is_block) for name, _, own, is_block in _groups(model)]


def budget_bytes(memory: MemoryConfig, world: World) -> int | None:
    """Return the bytes that this process may take, or None for no limit.

    Raises:
        ConfigError: More than the machine has.
    """
    text = memory.host if memory.host is not None else memory.device
    if text is None:
        return None
    if text == "auto":
        return int(AUTO_SHARE * (free_bytes(world.device) + resident_bytes()))
    total = total_bytes()
    size = parse_size(text, total)
    if size > total:
        raise ConfigError(f"memory.host={text}: expected at most what the machine has, found {total} bytes; use auto")
    return size


def _check_offload(model: nn.Module, memory: MemoryConfig) -> None:
    """Refuse to offload activations where nothing would be, or where it cannot be.

    Raises:
        ConfigError: A setting is missing or contradicts it; the message names it.
    """
    config = prepared(model).config
    if memory.disk.path is None:
        raise ConfigError("memory.activations=offload sends activations to the disk; give memory.disk.path, or use keep")
    if config.recompute == "none":
        raise ConfigError(
            "memory.activations=offload sends the inputs of blocks that are computed again to the disk, and "
            "parallel.recompute=none computes none again; use parallel.recompute=blocks, or keep"
        )
    if config.compile:
        raise ConfigError("memory.activations=offload cannot look into compiled blocks; use parallel.compile=false, or keep")


def _folder(world: World, memory: MemoryConfig, needed_bytes: int) -> TierFolder:
    """Return this rank's folder, with room for so many bytes."""
    assert memory.disk.path is not None
    state = Path(memory.disk.path)
    limit = None
    if memory.disk.budget not in (None, "auto"):
        filesystem = os.statvfs(next(each for each in (state.absolute(), *state.absolute().parents) if each.exists()))
        limit = parse_size(str(memory.disk.budget), filesystem.f_blocks * filesystem.f_frsize)
    if world.is_main:
        sweep_ranks(state, world.world_size)
    return TierFolder(state, world.rank, needed_bytes, limit)


def _open(
    units: Sequence[tuple[str, nn.Module, list[nn.Parameter], bool]],
    placement: Placement,
    world: World,
    memory: MemoryConfig,
    disk_bytes: int,
    *,
    is_filled: bool,
) -> Tiers:
    files: list[DirectFile] = []
    folder = _folder(world, memory, disk_bytes) if disk_bytes else None
    made = []
    traffic = DiskTraffic()
    try:
        for number, ((name, module, own, _), homes) in enumerate(zip(units, placement.homes, strict=True)):
            shapes = [padded_shape(parameter, SHARD) for parameter in own if is_sharded(parameter)]
            places = lay_down(own, shapes, [held(parameter).numel() for parameter in own])
            unit = Unit(name, module, places, _region(places), homes)
            path = folder.file(f"unit-{number}") if folder is not None else Path()
            file = open_regions(unit, path, traffic)
            if file is not None:
                files.append(file)
            made.append(unit)
    except Exception:
        for file in files:
            file.close()
        if folder is not None:
            folder.close()
        raise
    return Tiers(
        made,
        placement=placement,
        slot_count=memory.slots,
        when=memory.optimizer_update,
        folder=folder,
        files=files,
        traffic=traffic,
        is_filled=is_filled,
        inputs=Inputs(folder.file, traffic) if folder is not None and memory.activations == "offload" else None,
    )


def _groups(model: nn.Module) -> list[tuple[str, nn.Module, list[nn.Parameter], bool]]:
    """Return the units that `fully_shard` made, in forward order, and last what is in no block.

    Raises:
        ConfigError: The model is not sharded.
    """
    if not isinstance(model, FSDPModule):
        raise ConfigError(f"{type(model).__name__}: tiers need a sharded model; call modelzoo.runtime.prepare with tiers first")
    names = {id(module): name for name, module in model.named_modules()}
    seen: set[int] = set()
    groups: list[tuple[str, nn.Module, list[nn.Parameter], bool]] = []
    for unit in prepared(model).units:
        if isinstance(unit, FSDPModule):
            own = [parameter for parameter in unit.parameters() if id(parameter) not in seen]
            seen.update(id(parameter) for parameter in own)
            groups.append((names[id(unit)], unit, own, True))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in seen]
    if rest:
        groups.append(("(rest)", model, rest, False))
    return groups


def _sizes(name: str, own: Sequence[nn.Parameter], is_block: bool) -> Sizes:
    shard = sum(aligned(max(math.prod(padded_shape(parameter, SHARD)), 1)) for parameter in own if is_sharded(parameter))
    trained = sum(held(parameter).numel() for parameter in own if parameter.requires_grad)
    return Sizes(name, shard, sum(parameter.numel() for parameter in own), trained, is_block)


def _region(places: Sequence[Place]) -> int:
    last = places[-1]
    return last.start + aligned(max(math.prod(last.padded), 1))
