"""The ring of slots that blocks pass through on their way from the disk: filled ahead of use, kept while nobody needs the room."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.unit import CPU, Unit

__all__ = ["Slot", "Slots", "slot_elements"]


def slot_elements(sizes: Iterable[int]) -> int:
    """Return the float32 values of a slot for units of these sizes.

    A unit much larger than the blocks (the embeddings) gets memory of its own, so that slots stay the size of a block.
    """
    ordered = sorted(sizes)
    return max((size for size in ordered if size <= 2 * ordered[len(ordered) // 2]), default=0)


@dataclass(slots=True, eq=False)
class Slot:
    """Memory of one unit's parameters, where the model computes."""

    values: Tensor
    """Flat float32."""
    buffer: Buffer | None
    """The same memory where the disk can be read into it; None on an accelerator."""
    unit: Unit | None = None
    """Whose values it holds, or will hold when `filled` is done."""
    filled: Future[None] | None = None
    users: int = 0
    """Parameters of the unit that are still to be copied out, and updates that run."""
    last_use: int = 0
    released: Any = None
    """Event after which nobody reads it any more, on an accelerator."""

    @property
    def size_bytes(self) -> int:
        """Its memory."""
        return self.values.nbytes


@dataclass(slots=True)
class Slots:
    """Slots of one size; a unit that is larger gets memory of its own for the time of its use.

    Args:
        count: How many.
        elements: float32 values of each.
        link: To the device that computes.
    """

    count: int
    elements: int
    link: Link = CPU
    slots: list[Slot] = field(default_factory=list)
    oversized: dict[int, Slot] = field(default_factory=dict)
    _clock: int = 0

    def find(self, unit: Unit) -> Slot | None:
        """Return the slot that holds a unit, or is being filled with it."""
        if unit.elements > self.elements:
            return self.oversized.get(id(unit))
        return next((slot for slot in self.slots if slot.unit is unit), None)

    def take(self, unit: Unit) -> Slot | None:
        """Return a slot for a unit that none holds, the one that was used longest ago; None if all are in use."""
        if unit.elements > self.elements:
            slot = self.oversized[id(unit)] = self._make(unit.elements)
        else:
            if len(self.slots) < self.count:
                self.slots.append(self._make(self.elements))
            free = [slot for slot in self.slots if not slot.users and (slot.filled is None or slot.filled.done())]
            if not free:
                return None
            slot = min(free, key=lambda each: each.last_use)
        slot.unit, slot.filled = unit, None
        self.touch(slot)
        return slot

    def touch(self, slot: Slot) -> None:
        """Note that a slot is used now."""
        self._clock += 1
        slot.last_use = self._clock

    def release(self, slot: Slot) -> None:
        """Note that one user is done; memory of an oversized unit goes with its last."""
        slot.users -= 1
        if not slot.users:
            slot.released = self.link.mark()
        if not slot.users and slot.unit is not None and slot.unit.elements > self.elements:
            self.oversized.pop(id(slot.unit), None)

    def forget(self, unit: Unit) -> None:
        """Drop what is held of a unit: its values have changed elsewhere."""
        slot = self.find(unit)
        if slot is not None:
            slot.unit = None
        self.oversized.pop(id(unit), None)

    def clear(self) -> None:
        """Let go of all memory."""
        self.slots.clear()
        self.oversized.clear()

    @property
    def size_bytes(self) -> int:
        """Memory that is in use now."""
        return sum(slot.size_bytes for slot in [*self.slots, *self.oversized.values()])

    def _make(self, elements: int) -> Slot:
        if self.link.is_apart:
            slot = Slot(self.link.on_device(elements), None)
            slot.released = self.link.mark()  # zeros are written before
            return slot
        buffer = Buffer(elements)
        return Slot(buffer.values, buffer)
