"""Which values stay in memory and which go to disk: what costs most traffic a byte stays, under a budget that always holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from modelzoo.errors import ConfigError
from modelzoo.runtime.publish import readable_size
from modelzoo.runtime.tiers.adamw import PIECE
from modelzoo.runtime.tiers.unit import KINDS, Home, Kind

__all__ = ["Placement", "Sizes", "place_units"]

VALUE_BYTES = 4
SCRATCH_BYTES = 4 * PIECE * VALUE_BYTES
TRAFFIC: Mapping[Kind, float] = {"parameters": 3.0, "gradients": 2.0, "exp_avg": 2.0, "exp_avg_sq": 2.0}
"""Times a step that a byte of each kind is read or written when it is on disk: parameters are read for forward and backward and
written once, the others written and read once."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A unit's values on this rank."""

    name: str
    shard: int
    """float32 values of a region: this rank's shard, page ends included."""
    whole: int
    """Values of the unit when it is put together."""
    trained: int
    """Values of the shard that are trained."""
    is_block: bool
    """False for what is in no block: it is whole during the whole step."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each unit's values live, and what that takes."""

    homes: tuple[Mapping[Kind, Home], ...]
    memory_bytes: int
    """Peak of everything but activations, on this rank."""
    disk_bytes: int
    moved_bytes: int
    """Read from and written to disk in a step."""
    smallest_bytes: int
    """The least memory with which the model could be trained."""


def place_units(
    units: Sequence[Sizes],
    *,
    budget_bytes: int | None,
    has_disk: bool,
    slots: int,
    how: Literal["plan", "static"],
    when: Literal["step", "in_backward", "deferred"],
) -> Placement:
    """Return the homes of all units' values.

    Args:
        units: In forward order, what is in no block last.
        budget_bytes: For everything but activations; None for no limit.
        has_disk: Whether there is a disk tier.
        slots: Blocks on their way at a time.
        how: As `MemoryConfig.placement`.
        when: As `MemoryConfig.optimizer_update`.

    Raises:
        ConfigError: The budget is too small; the message says the smallest that is not.
    """
    base = _base_bytes(units, when)
    kinds: list[Kind] = [kind for kind in KINDS if kind != "gradients" or when != "in_backward"]
    costs = {
        (number, kind): VALUE_BYTES * (unit.shard if kind == "parameters" else unit.trained and unit.shard)
        for number, unit in enumerate(units)
        for kind in kinds
    }
    everything = base + sum(costs.values())
    slot_bytes = _slot_bytes(units, slots)
    smallest = min(everything, base + slot_bytes) if has_disk else everything
    if budget_bytes is None or everything <= budget_bytes:
        return Placement(tuple(dict.fromkeys(KINDS, "memory") for _ in units), everything, 0, 0, smallest)
    if budget_bytes < smallest:
        advice = "" if has_disk else ", or give memory.disk.path"
        raise ConfigError(
            f"memory: {readable_size(budget_bytes)} for the model is too small: expected at least {readable_size(smallest)} "
            f"({smallest} bytes) beside the activations{advice}"
        )
    room = budget_bytes - base - slot_bytes
    kept: set[tuple[int, Kind]] = set()
    for key in _order(costs, how):
        if costs[key] <= room:
            room -= costs[key]
            kept.add(key)
    homes: list[dict[Kind, Home]] = []
    for number, _ in enumerate(units):
        own: dict[Kind, Home] = dict.fromkeys(KINDS, "memory")
        own.update({kind: "disk" for kind in kinds if costs[number, kind] and (number, kind) not in kept})
        homes.append(own)
    away = {key: cost for key, cost in costs.items() if key not in kept}
    if not any(kind == "parameters" for _, kind in away):
        slot_bytes = 0
    return Placement(
        homes=tuple(homes),
        memory_bytes=base + slot_bytes + sum(costs[key] for key in kept),
        disk_bytes=sum(away.values()),
        moved_bytes=int(sum(TRAFFIC[kind] * cost for (_, kind), cost in away.items())),
        smallest_bytes=smallest,
    )


def _order(costs: Mapping[tuple[int, Kind], int], how: str) -> list[tuple[int, Kind]]:
    """Return what is kept first: by traffic a byte, and of equal ones the blocks that the backward needs first; or as they come."""
    if how == "static":
        return sorted(costs, key=lambda key: (key[0], KINDS.index(key[1])))
    return sorted(costs, key=lambda key: (-TRAFFIC[key[1]], -key[0]))


def _base_bytes(units: Sequence[Sizes], when: str) -> int:
    """Return what a step takes wherever values live: units that are whole, gradients on their way, buffers of the update."""
    block = max((unit.whole for unit in units if unit.is_block), default=0)
    rest = sum(unit.whole for unit in units if not unit.is_block)
    # the block at work and its whole gradients with their reduced copy; what is in no block is whole all the time
    working = 3 * block + 3 * rest
    if when == "in_backward":
        working += max((unit.shard for unit in units), default=0)
    return VALUE_BYTES * working + SCRATCH_BYTES


def _slot_bytes(units: Sequence[Sizes], slots: int) -> int:
    block = max((unit.shard for unit in units if unit.is_block), default=0)
    rest = max((unit.shard for unit in units if not unit.is_block), default=0)
    return VALUE_BYTES * (slots * block + rest)
