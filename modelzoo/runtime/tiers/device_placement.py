"""Which blocks stay on an accelerator, and where the values of the others live below it: in the host's memory or on disk.

A block stays with all of its values or with none: parameters alone would cost as much traffic as none, because the update on the
host takes them there and back. What does not stay passes through slots on the device; its update runs on the host. On the device
are then, beside `working_bytes`, the slots and one block's gradients on their way down.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from modelzoo.errors import ConfigError
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.pieces import SCRATCH_SETS, UPDATE_PIECE
from modelzoo.runtime.tiers.placement import (
    VALUE_BYTES,
    Key,
    Placement,
    Sizes,
    When,
    costs_of,
    kept_of,
    moved_bytes,
    order_of,
    settled_bytes,
    slot_bytes,
    working_bytes,
)
from modelzoo.runtime.tiers.staging import PIECE
from modelzoo.runtime.tiers.unit import KINDS, Home, Kind
from modelzoo.runtime.tiers.worker import WORKERS

__all__ = ["bus_bytes", "place_below_device"]

HOST_SCRATCH_BYTES = (2 * WORKERS * len(KINDS) * SCRATCH_SETS * UPDATE_PIECE + PIECE) * VALUE_BYTES
"""Pieces of every kind in all threads, and of values from outside."""


def place_below_device(
    units: Sequence[Sizes],
    *,
    device_bytes: int | None,
    host_bytes: int | None,
    has_disk: bool,
    slots: int,
    how: Literal["plan", "static"],
    when: When,
    ranks: int | None = None,
    reserved_bytes: int = 0,
) -> Placement:
    """Return the homes of all units' values.

    Args:
        units: In forward order, what is in no block last.
        device_bytes: Of the accelerator, for everything but activations; None for no limit.
        host_bytes: Of the host, for what is below the accelerator; None for no limit.
        has_disk: Whether there is a disk tier below the host.
        slots: Blocks on their way at a time.
        how: As `MemoryConfig.placement`.
        when: As `MemoryConfig.optimizer_update`.
        ranks: As of `place_units`.
        reserved_bytes: What was taken off the device's budget before, for messages.

    Raises:
        ConfigError: A budget is too small; the message says the smallest that is not.
    """
    costs, working = costs_of(units, when), working_bytes(units, when, ranks)
    moving = working + slot_bytes(units, slots) + VALUE_BYTES * max((unit.shard for unit in units if unit.is_block), default=0)
    everything = settled_bytes(units, costs, when, ranks)
    smallest = min(everything, moving)
    if device_bytes is None or everything <= device_bytes:
        return Placement(tuple(dict.fromkeys(KINDS, "memory") for _ in units), everything, 0, 0, smallest)
    if device_bytes < smallest:
        total = smallest + reserved_bytes
        raise ConfigError(
            f"memory.device: {readable_size(device_bytes + reserved_bytes)} is too small: expected at least {readable_size(total)} "
            f"({total} bytes): {readable_size(smallest)} for the model and {readable_size(reserved_bytes)} beside it"
        )
    whole = {number: sum(costs[number, kind] for kind in KINDS if (number, kind) in costs) for number in range(len(units))}
    order = sorted(whole) if how == "static" else sorted(whole, key=lambda number: (-_share(units[number], whole[number]), -number))
    stay, room = set(), device_bytes - moving
    for number in order:
        if whole[number] <= room:
            room -= whole[number]
            stay.add(number)
    below = {key: cost for key, cost in costs.items() if key[0] not in stay}
    in_host = _in_host(units, below, host_bytes, has_disk=has_disk, how=how, when=when)
    on_disk = {key for key in below if key not in in_host}
    return Placement(
        homes=tuple(_homes(number, stay, below, on_disk) for number in range(len(units))),
        memory_bytes=moving + sum(whole[number] for number in stay),
        disk_bytes=sum(below[key] for key in on_disk),
        moved_bytes=moved_bytes(units, below, set(in_host), when),
        smallest_bytes=smallest,
        host_bytes=_host_scratch(units, on_disk) + sum(below[key] for key in in_host),
        bus_bytes=sum(bus_bytes(unit) for number, unit in enumerate(units) if number not in stay),
    )


def bus_bytes(unit: Sizes) -> int:
    """Return the bytes of a unit below the device that pass between it and the host in a step of one micro-batch.

    Parameters go up for the forward and, of a block, for the backward; gradients come down.
    """
    return VALUE_BYTES * unit.shard * (1 + unit.is_block + (unit.trained > 0))


def _share(unit: Sizes, size: int) -> float:
    """Return the traffic that a byte of a unit on the device saves."""
    return bus_bytes(unit) / max(size, 1)


def _in_host(
    units: Sequence[Sizes],
    below: Mapping[Key, int],
    host_bytes: int | None,
    *,
    has_disk: bool,
    how: Literal["plan", "static"],
    when: When,
) -> set[Key]:
    """Return what lives in the host's memory of that which is below the device.

    Raises:
        ConfigError: There is no room for it, and no disk; or not even for the buffers.
    """
    everything = HOST_SCRATCH_BYTES + sum(below.values())
    if host_bytes is None or everything <= host_bytes:
        return set(below)
    smallest = min(everything, _host_scratch(units, below))
    if not has_disk or host_bytes < smallest:
        expected = smallest if has_disk else everything
        raise ConfigError(
            f"memory.host: {readable_size(host_bytes)} is too small for what is below the device: expected at least "
            f"{readable_size(expected)} ({expected} bytes)" + ("" if has_disk else "; or give memory.disk.path")
        )
    parameters = [key for key in below if key[1] == "parameters"]
    planned = order_of(units, below, how, when)
    candidates = [kept_of(below, planned, host_bytes - _host_scratch(units, below))]
    if sum(below[key] for key in parameters) <= host_bytes - HOST_SCRATCH_BYTES:  # then no unit comes from the disk
        others = [key for key in planned if key[1] != "parameters"]
        candidates.append(kept_of(below, [*parameters, *others], host_bytes - HOST_SCRATCH_BYTES))
    return min(candidates, key=lambda each: moved_bytes(units, below, each, when))


def _host_scratch(units: Sequence[Sizes], on_disk: Iterable[Key]) -> int:
    """Return what buffers take on the host: pieces, and in every thread a unit whose parameters come from the disk."""
    largest = max((units[number].shard for number, kind in on_disk if kind == "parameters"), default=0)
    return HOST_SCRATCH_BYTES + 2 * WORKERS * VALUE_BYTES * largest


def _homes(number: int, stay: set[int], below: Mapping[Key, int], on_disk: set[Key]) -> Mapping[Kind, Home]:
    if number in stay:
        return dict.fromkeys(KINDS, "memory")
    homes: dict[Kind, Home] = {}
    for kind in KINDS:
        key = (number, kind)
        # with updates in the backward gradients are taken from where torch has them
        homes[kind] = "memory" if key not in below else "disk" if key in on_disk and below[key] else "host"
    return homes
