"""From budgets to tiers: which values of which block live where, and the engine on a prepared model."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.config.memory import MemoryConfig, parse_size
from modelzoo.errors import ConfigError
from modelzoo.runtime.axes import SHARD
from modelzoo.runtime.memory import free_bytes, give_back_at_once, keep_freed, limit_device, resident_bytes, total_bytes
from modelzoo.runtime.prepare import materialise, prepared
from modelzoo.runtime.process import World
from modelzoo.runtime.recompute import keep_inputs
from modelzoo.runtime.tiers.device_placement import place_below_device
from modelzoo.runtime.tiers.direct_file import DirectFile
from modelzoo.runtime.tiers.engine import Tiers
from modelzoo.runtime.tiers.folder import TierFolder, sweep_ranks
from modelzoo.runtime.tiers.in_place import nothing_like
from modelzoo.runtime.tiers.inputs import Inputs
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.placement import Placement, Sizes, leaves_room, place_units
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.unit import Place, Unit, aligned, lay_down, open_regions
from modelzoo.runtime.units import find_ties, holds_any
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
    link: Link | None = None,
) -> Tiers:
    """Let a model's values live in the tiers; `TieredAdamW` is its optimizer from then on.

    Args:
        model: After `prepare(for_tiers=True)`. One on meta is given its memory here, unit by unit, so that the device never holds
            what lives below it.
        world: The processes.
        memory: Budgets of a process, and when updates are carried out.
        reserved_bytes: What activations and everything else beside the model take of the budget of the memory it computes in.
        placement: Instead of the one that the budget gives.
        is_filled: Whether the parameters have values yet; False where they are loaded next.
        inputs_bytes: Of blocks' inputs that will wait on disk (`memory.activations: offload`), for which room is looked for.
        link: Between the device and the host; None is that of the world's device.

    Raises:
        ConfigError: The budget is too small or larger than the machine, or the folder is in use; the message says what would do.
        SaveError: The disk tier cannot be made.
    """
    link = link or Link(world.device)
    offloads, heap_limit = memory.activations == "offload", None
    if offloads:
        _check_offload(model, memory, link)
    if placement is None:
        ranks = world.data_size if isinstance(model, FSDPModule) else None
        placement, heap_limit = _place(sizes_of(model), world, memory, link, reserved_bytes, ranks)
    needed = placement.disk_bytes + (max(inputs_bytes, 1) if offloads else 0)
    is_filled = not _give_memory(model, placement, world.device) and is_filled
    folder = _folder(world, memory, needed) if needed else None  # from here on `_open` lets go of it if anything fails
    tiers = _TIERS[model] = _open(_groups(model), placement, folder, memory, link, is_filled=is_filled)
    tiers.heap_limit = heap_limit
    keep_inputs(prepared(model).units, None if tiers.inputs is None else tiers.inputs.hooks)
    return tiers


def tiers_of(model: nn.Module) -> Tiers | None:
    """Return the tiers of a model, if it has any."""
    return _TIERS.get(model)


def sizes_of(model: nn.Module) -> list[Sizes]:
    """Return the sizes of a prepared model's units on this rank, what is in no block last."""
    value_bytes = prepared(model).config.value_bytes
    return [_sizes(name, own, is_block, value_bytes) for name, _, own, is_block in _groups(model)]


def budget_bytes(memory: MemoryConfig, world: World, link: Link | None = None) -> int | None:
    """Return the bytes that this process may take of the memory it computes in, or None for no limit.

    Args:
        memory: Budgets.
        world: The processes.
        link: Between the device and the host; None is that of the world's device.

    Raises:
        ConfigError: More than the machine has.
    """
    link = link or Link(world.device)
    if link.is_apart:
        free = free_bytes(world.device) + (link.allocated_bytes or 0)
        return _size("memory.device", memory.device or "auto", total_bytes(world.device), free)
    text = memory.host if memory.host is not None else memory.device
    return None if text is None else _size("memory.host", text, total_bytes(), free_bytes(world.device) + resident_bytes())


def _size(key: str, text: str, total: int, free: int) -> int:
    """Return the bytes that a budget says."""
    if text == "auto":
        return int(AUTO_SHARE * free)
    size = parse_size(text, total)
    if size > total:
        raise ConfigError(f"{key}={text}: expected at most what the machine has, found {total} bytes; use auto")
    return size


def _place(
    sizes: Sequence[Sizes], world: World, memory: MemoryConfig, link: Link, reserved_bytes: int, ranks: int | None
) -> tuple[Placement, int | None]:
    """Return where a model's values live under the budgets, and the resident bytes up to which glibc may keep freed memory.

    Raises:
        ConfigError: A budget is too small or larger than the machine.
    """
    budget, cpu = budget_bytes(memory, world, link), torch.device("cpu")
    has_disk = memory.disk.path is not None
    room = None if budget is None else budget - reserved_bytes
    slots, how, when = memory.slots, memory.placement, memory.optimizer_update
    if not link.is_apart:
        placement = place_units(
            sizes, budget_bytes=room, has_disk=has_disk, slots=slots, how=how, when=when, ranks=ranks, reserved_bytes=reserved_bytes
        )
        return placement, _hold_heap(placement, budget, reserved_bytes)
    host = _size("memory.host", memory.host or "auto", total_bytes(), free_bytes(cpu) + resident_bytes())
    placement = place_below_device(
        sizes,
        device_bytes=room,
        # a size counts the program, what is free does not have it any more
        host_bytes=max(host - resident_bytes(), 0),
        has_disk=has_disk,
        slots=slots,
        how=how,
        when=when,
        ranks=ranks,
        reserved_bytes=reserved_bytes,
    )
    if memory.device is not None and budget is not None:
        limit_device(world.device, budget)
    return placement, None


def _hold_heap(placement: Placement, budget: int | None, reserved_bytes: int) -> int | None:
    """Let glibc keep freed memory, which is faster, only where a budget has room for it; return how far it may go."""
    has_room = leaves_room(placement, budget, reserved_bytes)
    (keep_freed if has_room else give_back_at_once)()
    return budget if has_room else None


def _give_memory(model: nn.Module, placement: Placement, device: torch.device) -> bool:
    """Give a model on meta memory, taken away at once where values live in a lower tier, and return whether it was on meta."""
    if not any(parameter.is_meta for parameter in model.parameters()):
        return False
    inside: set[int] = set()
    is_in_place = not isinstance(model, FSDPModule)
    for (_, module, _, _), homes in zip(_groups(model), placement.homes, strict=True):
        modules = [each for each in module.modules() if id(each) not in inside]
        inside.update(map(id, modules))
        materialise(model, device, modules=modules)
        if homes["parameters"] != "memory":
            for each in modules:
                for parameter in each.parameters(recurse=False):
                    if is_sharded(parameter):
                        held(parameter).untyped_storage().resize_(0)
                    elif is_in_place and _is_moved(parameter):
                        parameter.data = nothing_like(parameter)
    return True


def _check_offload(model: nn.Module, memory: MemoryConfig, link: Link) -> None:
    """Refuse to offload activations where nothing would be, or where it cannot be.

    Raises:
        ConfigError: A setting is missing or contradicts it; the message names it.
    """
    config = prepared(model).config
    if link.is_apart:
        raise ConfigError("memory.activations=offload sends activations of a CPU to the disk; on an accelerator use keep")
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
    groups: Sequence[tuple[str, nn.Module, list[nn.Parameter], bool]],
    placement: Placement,
    folder: TierFolder | None,
    memory: MemoryConfig,
    link: Link,
    *,
    is_filled: bool,
) -> Tiers:
    files: list[DirectFile] = []
    made = []
    traffic = DiskTraffic()
    try:
        for number, ((name, module, own, is_block), homes) in enumerate(zip(groups, placement.homes, strict=True)):
            moved = [parameter for parameter in own if _is_moved(parameter)]
            places = lay_down(moved, [_shape(parameter) for parameter in moved], [held(parameter).numel() for parameter in moved])
            unit = Unit(name, module, places, _region(places), homes, link, is_block)
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
        link=link,
    )


def _groups(model: nn.Module) -> list[tuple[str, nn.Module, list[nn.Parameter], bool]]:
    """Return the blocks that are laid out one by one, in forward order, and last what is in no block.

    Raises:
        ConfigError: The model was not prepared for tiers.
    """
    known = prepared(model)
    if not known.for_tiers:
        raise ConfigError(f"{type(model).__name__}: call modelzoo.runtime.prepare with for_tiers=True first")
    ties = [] if isinstance(model, FSDPModule) else find_ties(model)
    names = {id(module): name for name, module in model.named_modules()}
    seen: set[int] = set()
    groups: list[tuple[str, nn.Module, list[nn.Parameter], bool]] = []
    for unit in known.units:
        if isinstance(unit, FSDPModule) or (not isinstance(model, FSDPModule) and not holds_any(unit, ties)):
            own = [parameter for parameter in unit.parameters() if id(parameter) not in seen]
            seen.update(id(parameter) for parameter in own)
            groups.append((names[id(unit)], unit, own, True))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in seen]
    if rest:
        groups.append(("(rest)", model, rest, False))
    return groups


def _sizes(name: str, own: Sequence[nn.Parameter], is_block: bool, value_bytes: int) -> Sizes:
    shard = sum(aligned(max(math.prod(_shape(parameter)), 1)) for parameter in own if _is_moved(parameter))
    trained = sum(held(parameter).numel() for parameter in own if parameter.requires_grad)
    return Sizes(name, shard, sum(parameter.numel() for parameter in own), trained, is_block, value_bytes)


def _is_moved(parameter: nn.Parameter) -> bool:
    """Return whether a parameter's values can live in a lower tier: not those that are stored in fewer bits."""
    return is_sharded(parameter) or (type(parameter.data) is Tensor and parameter.dtype == torch.float32)


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return padded_shape(parameter, SHARD) if is_sharded(parameter) else tuple(parameter.shape)


def _region(places: Sequence[Place]) -> int:
    last = places[-1]
    return last.start + aligned(max(math.prod(last.padded), 1))
