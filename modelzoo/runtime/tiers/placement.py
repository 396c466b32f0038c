"""Which values stay in memory and which go to disk: what costs most traffic a byte stays, under a budget that always holds.

A step takes beside the homes, with U values in the largest block and R in no block:

On one process (`InPlace`) blocks compute on the slots. There are the gradients of the block at work, U; those of what is in no
block, R, of which a part waits during the whole backward (tied embeddings have their scores' first); and while no block is at work
a second one and the sum of both, 2 R.

Sharded, by what `fully_shard` of torch 2.13 does, there are while a block's backward runs its whole parameters, U, its gradients,
U, and the buffer of the block before, which is let go when the next reduction begins, U; on many ranks also the next block on its
way, U. When its gradients are reduced, its whole parameters are gone; there are they and the buffer, then the buffer, its result
and their quotient, 3 U. What is in no block is whole during the whole step, R, and has gradients as above. Units that are whole,
and their gradients until they are reduced, are in the precision of the computing; buffers of reductions and their results float32.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from modelzoo.errors import ConfigError
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.pieces import SCRATCH_SETS, UPDATE_PIECE
from modelzoo.runtime.tiers.staging import PIECE, STAGING_BUFFERS
from modelzoo.runtime.tiers.unit import KINDS, Home, Kind
from modelzoo.runtime.tiers.worker import WORKERS

__all__ = [
    "VALUE_BYTES",
    "Key",
    "Placement",
    "Sizes",
    "When",
    "costs_of",
    "kept_of",
    "leaves_room",
    "moved_bytes",
    "moves",
    "order_of",
    "place_units",
    "settled_bytes",
    "slot_bytes",
    "working_bytes",
]

VALUE_BYTES = 4
SCRATCH_BYTES = (3 * WORKERS * SCRATCH_SETS * UPDATE_PIECE + (STAGING_BUFFERS + 1) * PIECE) * VALUE_BYTES
"""Of both moments and gradients in every thread, of gradients on their way to the disk, and of values from outside."""

KEEPING_SHARE = 0.75
"""Of a budget, what may be needed so that the rest is room for what glibc keeps: runs without a budget were up to 8 % over the
plan, and with batches of changing shapes the demo, which is small, by 22 %."""

When = Literal["step", "in_backward", "deferred"]
Homes = tuple[Mapping[Kind, Home], ...]
Key = tuple[int, Kind]


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
    value_bytes: int = VALUE_BYTES
    """Of a value when the unit is put together, and of its gradient until that is reduced."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each unit's values live, and what that takes."""

    homes: Homes
    memory_bytes: int
    """Peak of everything but activations, on this rank."""
    disk_bytes: int
    moved_bytes: int
    """Read from and written to disk in a step of one micro-batch, at most: what is found in a slot is not read."""
    smallest_bytes: int
    """The least memory with which the model could be trained."""
    host_bytes: int = 0
    """Peak of the host's memory below an accelerator."""
    bus_bytes: int = 0
    """Copied between an accelerator and the host in a step of one micro-batch."""


def place_units(
    units: Sequence[Sizes],
    *,
    budget_bytes: int | None,
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
        budget_bytes: For everything but activations; None for no limit.
        has_disk: Whether there is a disk tier.
        slots: Blocks on their way at a time.
        how: As `MemoryConfig.placement`. The plan is never worse than static: where that would move less, it is taken.
        when: As `MemoryConfig.optimizer_update`.
        ranks: Between which `fully_shard` shares the values; None on one process that computes in place.
        reserved_bytes: What was taken off the budget before, for messages.

    Raises:
        ConfigError: The budget is too small; the message says the smallest that is not.
    """
    costs = costs_of(units, when)
    working = working_bytes(units, when, ranks)
    moving = working + SCRATCH_BYTES + slot_bytes(units, slots)
    everything = settled_bytes(units, costs, when, ranks)
    smallest = min(everything, moving) if has_disk else everything
    if budget_bytes is None or everything <= budget_bytes:
        return Placement(tuple(dict.fromkeys(KINDS, "memory") for _ in units), everything, 0, 0, smallest)
    if budget_bytes < smallest:
        total, found = smallest + reserved_bytes, budget_bytes + reserved_bytes
        beside = (
            f": {readable_size(smallest)} for the model and {readable_size(reserved_bytes)} beside it" if reserved_bytes else ""
        )
        raise ConfigError(
            f"memory.host: {readable_size(found)} is too small: expected at least {readable_size(total)} ({total} bytes){beside}"
            + ("" if has_disk else "; or give memory.disk.path")
        )
    parameters = [key for key in costs if key[1] == "parameters"]
    candidates = [kept_of(costs, order_of(units, costs, "static", when), budget_bytes - moving)]
    if how == "plan":
        planned = order_of(units, costs, "plan", when)
        candidates.append(kept_of(costs, planned, budget_bytes - moving))
        room = budget_bytes - working - SCRATCH_BYTES
        if sum(costs[key] for key in parameters) <= room:  # then no slot is needed
            candidates.append(kept_of(costs, [*parameters, *(key for key in planned if key[1] != "parameters")], room))
    kept = min(candidates, key=lambda each: moved_bytes(units, costs, each, when))
    is_streamed = any(key not in kept for key in parameters if costs[key])
    return Placement(
        homes=_homes(len(units), costs, kept),
        memory_bytes=(moving if is_streamed else working + SCRATCH_BYTES) + sum(costs[key] for key in kept),
        disk_bytes=sum(cost for key, cost in costs.items() if key not in kept),
        moved_bytes=moved_bytes(units, costs, kept, when),
        smallest_bytes=smallest,
    )


def leaves_room(placement: Placement, budget_bytes: int | None, reserved_bytes: int) -> bool:
    """Return whether glibc may keep the memory of freed tensors, which is faster: nothing has to move, and the budget has room.

    Args:
        placement: Where values live.
        budget_bytes: Of the whole process; None for no limit.
        reserved_bytes: What it takes beside the model.
    """
    needed = placement.memory_bytes + reserved_bytes
    return not placement.disk_bytes and (budget_bytes is None or needed <= KEEPING_SHARE * budget_bytes)


def moves(unit: Sizes, kind: Kind, when: When) -> int:
    """Return how often a step of one micro-batch reads or writes a kind of a unit that is on disk.

    Parameters are read for the forward and, of a block, for the backward, and written once; with `step` a third read serves the
    update. Of what is in no block, the update in the backward needs a read. Everything else is read once and written once.
    """
    if kind != "parameters":
        return 2
    if not unit.trained:
        return 1 + unit.is_block
    return {"step": 3, "in_backward": 2 + (not unit.is_block), "deferred": 2}[when] + unit.is_block


def settled_bytes(units: Sequence[Sizes], costs: Mapping[Key, int], when: When, ranks: int | None) -> int:
    """Return what a step takes when everything stays in memory: in place, gradients come where they live."""
    rest = sum(unit.whole for unit in units if not unit.is_block)
    is_plain = ranks is None and when != "in_backward"
    return sum(costs.values()) + (2 * VALUE_BYTES * rest if is_plain else working_bytes(units, when, ranks))


def working_bytes(units: Sequence[Sizes], when: When, ranks: int | None = None) -> int:
    """Return what a step takes wherever values live: units that are put together, and gradients on their way."""
    block = max((unit.whole for unit in units if unit.is_block), default=0)
    rest = sum(unit.whole for unit in units if not unit.is_block)
    if ranks is None:
        working = VALUE_BYTES * (rest + max(2 * rest, block))
    else:
        value = max((unit.value_bytes for unit in units), default=VALUE_BYTES)
        following = value * block if ranks > 1 else 0
        # sums of gradients are float32 whatever is computed in
        reduced = 3 * VALUE_BYTES
        working = max(reduced * rest, 3 * value * rest + VALUE_BYTES * block, 2 * value * rest + reduced * block + following)
    if when == "in_backward":
        # gradients of units that are being updated
        working += VALUE_BYTES * sum(heapq.nlargest(WORKERS, (unit.shard for unit in units)))
    return working


def slot_bytes(units: Sequence[Sizes], slots: int) -> int:
    """Return what the slots take, each as much as the largest block, and the memory of what is in no block."""
    block = max((unit.shard for unit in units if unit.is_block), default=0)
    return VALUE_BYTES * (slots * block + sum(unit.shard for unit in units if not unit.is_block))


def costs_of(units: Sequence[Sizes], when: When) -> dict[Key, int]:
    """Return the bytes of every kind of every unit that has a home: updated in the backward, gradients have none."""
    kinds: list[Kind] = [kind for kind in KINDS if kind != "gradients" or when != "in_backward"]
    return {
        (number, kind): VALUE_BYTES * (unit.shard if kind == "parameters" or unit.trained else 0)
        for number, unit in enumerate(units)
        for kind in kinds
    }


def kept_of(costs: Mapping[Key, int], order: Iterable[Key], room: int) -> set[Key]:
    """Return what fits into some bytes, in an order; what does not is passed over."""
    kept = set()
    for key in order:
        if costs[key] <= room:
            room -= costs[key]
            kept.add(key)
    return kept


def order_of(units: Sequence[Sizes], costs: Mapping[Key, int], how: str, when: When) -> list[Key]:
    """Return what is kept first: by traffic a byte, and of equal ones what the model waits for; or as they come.

    That is what is in no block, and the first blocks: they are updated last, or before the next forward can begin. Of their kinds
    gradients come last where updates are deferred: they are written in the backward, which is longer, and moments in the forward.
    """
    if how == "static":
        return sorted(costs, key=lambda key: (key[0], KINDS.index(key[1])))
    return sorted(
        costs,
        key=lambda key: (
            -moves(units[key[0]], key[1], when),
            when == "deferred" and key[1] == "gradients",
            units[key[0]].is_block,
            key[0],
        ),
    )


def moved_bytes(units: Sequence[Sizes], costs: Mapping[Key, int], kept: set[Key], when: When) -> int:
    """Return the bytes that a step of one micro-batch reads and writes of what is not kept."""
    return sum(cost * moves(units[key[0]], key[1], when) for key, cost in costs.items() if key not in kept)


def _homes(count: int, costs: Mapping[Key, int], kept: set[Key]) -> Homes:
    homes: list[dict[Kind, Home]] = [dict.fromkeys(KINDS, "memory") for _ in range(count)]
    for number, kind in costs:
        if costs[number, kind] and (number, kind) not in kept:
            homes[number][kind] = "disk"
    return tuple(homes)
