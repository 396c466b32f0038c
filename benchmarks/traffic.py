"""Bytes that a step moves between memory and disk under a budget: our placement, static placement, and caches of the same room.

    python benchmarks/traffic.py [--hidden 768] [--layers 12] [--shares 60 40 25]       # counted, a few seconds, no training

The model is a GPT-2 of the given shape, on meta. A share is that of the bytes of its parameters, gradients and moments which fit
into memory beside what a step takes anyway (working copies and buffers). `plan` and `static` are the placements of
`memory.placement`, with the bytes that their formula gives, which tests hold against counted ones. `LRU` and `Belady` are caches of
the same room with the same values as items (a block's parameters, gradients, and each moment), replayed over the order in which a
step uses them until a step moves what the one before did; they pay for no slots. `LRU` drops what was used longest ago; `Belady`
knows the future and drops what is needed last, which no cache of whole items can be much better than.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Use = tuple[tuple[int, str], bool]
"""An item, and whether it is changed."""


def order(count: int, blocks: int, when: str) -> list[Use]:
    """Return the items of a step in the order of their use; what is in no block is the last unit.

    Args:
        count: Units.
        blocks: Of them.
        when: The update: "step", "deferred" or "in_backward".
    """

    def update(number: int, kinds: Sequence[str]) -> list[Use]:
        return [((number, kind), kind != "gradients") for kind in kinds]

    everything = ("gradients", "exp_avg", "exp_avg_sq", "parameters")
    uses: list[Use] = []
    for number in (*range(blocks, count), *range(blocks)):  # what is in no block is whole from the beginning on
        uses += update(number, everything) if when == "deferred" else [((number, "parameters"), False)]
    for number in (*reversed(range(blocks)), *range(blocks, count)):
        if number < blocks:
            uses.append(((number, "parameters"), False))
        if when == "in_backward":
            uses += update(number, everything[1:])
        else:
            uses.append(((number, "gradients"), True))
    if when == "step":
        for number in range(count):
            uses += update(number, everything)
    return uses


@dataclass
class Cache:
    """Items in memory; what is not there is read, what was changed is written when it goes.

    Args:
        room: Bytes.
        knows_the_future: Whether it drops what is needed last instead of what was used longest ago.
    """

    room: int
    knows_the_future: bool

    def __post_init__(self) -> None:
        self._held: dict[Any, bool] = {}
        self.moved = 0

    def step(self, uses: Sequence[Use], sizes: dict[Any, int]) -> int:
        """Return the bytes that a step moves."""
        before = self.moved
        upcoming: dict[Any, list[int]] = {}
        for place, (item, _) in enumerate([*uses, *uses]):
            upcoming.setdefault(item, []).append(place)
        for place, (item, changes) in enumerate(uses):
            # a new gradient is not read
            if item not in self._held and not (item[1] == "gradients" and changes):
                self.moved += sizes[item]
            was_changed = self._held.pop(item, False)
            self._held[item] = changes or (was_changed and item[1] != "gradients")
            self._shrink(item, place, sizes, upcoming)
        return self.moved - before

    def _shrink(self, current: Any, place: int, sizes: dict[Any, int], upcoming: dict[Any, list[int]]) -> None:
        total = sum(sizes[item] for item in self._held)
        while total > self.room:
            if self.knows_the_future:
                item = max(self._held, key=lambda each: next(at for at in upcoming[each] if at > place))
            else:
                item = next(iter(self._held))
            total -= sizes[item]
            if self._held.pop(item):
                self.moved += sizes[item]


def steady(cache: Cache, uses: Sequence[Use], sizes: dict[Any, int]) -> int:
    """Return the bytes of a step when steps repeat."""
    last = -1
    for _ in range(12):
        moved = cache.step(uses, sizes)
        if moved == last:
            break
        last = moved
    return moved


def measure(hidden: int, layers: int, when: str, shares: Sequence[int], slots: int = 3) -> list[dict[str, float]]:
    """Return MB a step by way of placing, for each share."""
    from benchmark_model import sizes_of_gpt

    from modelzoo.runtime.tiers.placement import SCRATCH_BYTES, place_units, working_bytes

    units = sizes_of_gpt(hidden, layers)
    blocks = sum(unit.is_block for unit in units)
    kinds = ("parameters", "exp_avg", "exp_avg_sq", *(() if when == "in_backward" else ("gradients",)))
    sizes = {(number, kind): 4 * unit.shard for number, unit in enumerate(units) for kind in kinds}
    uses = [use for use in order(len(units), blocks, when) if use[0] in sizes]
    rows = []
    for share in shares:
        room = sum(sizes.values()) * share // 100
        budget = working_bytes(units, when) + SCRATCH_BYTES + room
        row: dict[str, float] = {"share": share}
        for how in ("plan", "static"):
            options: dict[str, Any] = {"has_disk": True, "slots": slots, "how": how, "when": when}
            row[how] = place_units(units, budget_bytes=budget, **options).moved_bytes / 1e6
        for name, knows in (("LRU", False), ("Belady", True)):
            row[name] = steady(Cache(room, knows), uses, sizes) / 1e6
        rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--shares", type=int, nargs="*", default=[60, 40, 25])
    options = parser.parse_args()
    print(f"GPT-2, {options.layers} blocks of {options.hidden}: MB a step between memory and disk")
    print(f"{'update':<12} {'in memory':>9} {'plan':>9} {'static':>9} {'LRU':>9} {'Belady':>9}   plan / LRU")
    for when in ("step", "deferred", "in_backward"):
        for row in measure(options.hidden, options.layers, when, options.shares):
            figures = " ".join(f"{row[name]:9.0f}" for name in ("plan", "static", "LRU", "Belady"))
            print(f"{when:<12} {row['share']:>8.0f}% {figures}   {row['plan'] / row['LRU']:.2f}")


if __name__ == "__main__":
    main()
