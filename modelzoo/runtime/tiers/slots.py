"""The ring of slots that blocks pass through on their way from the disk: filled ahead of use, kept while nobody needs the room."""

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.unit import CPU, Unit

__all__ = ["Slot", "Slots"]


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
    """Slots of one size for blocks; what is in no block, and stays while many blocks come and go, gets memory of its own.

    Args:
        count: How many.
        elements: float32 values of each: the largest block's.
        link: To the device that computes.
    """

    count: int
    elements: int
    link: Link = CPU
    slots: list[Slot] = field(default_factory=list)
    others: dict[int, Slot] = field(default_factory=dict)
    _clock: int = 0

    def find(self, unit: Unit) -> Slot | None:
        """Return the slot that holds a unit, or is being filled with it."""
        if not unit.is_block:
            return self.others.get(id(unit))
        return next((slot for slot in self.slots if slot.unit is unit), None)

    def take(self, unit: Unit, sparing: Collection[Unit] = ()) -> Slot | None:
        """Return a slot for a unit that none holds, the one that was used longest ago; None if all are in use.

        Args:
            unit: Which.
            sparing: Those whose slots are not given to it.
        """
        if not unit.is_block:
            slot = self.others[id(unit)] = self._make(unit.elements)
        else:
            if len(self.slots) < self.count:
                self.slots.append(self._make(self.elements))
            spared = {id(each) for each in sparing}
            free = [
                slot
                for slot in self.slots
                if not slot.users and (slot.filled is None or slot.filled.done()) and id(slot.unit) not in spared
            ]
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
        """Note that one user is done; memory that is not a block's goes with its last."""
        slot.users -= 1
        if not slot.users:
            slot.released = self.link.mark()
        if not slot.users and slot.unit is not None and not slot.unit.is_block:
            self.others.pop(id(slot.unit), None)

    def forget(self, unit: Unit) -> None:
        """Drop what is held of a unit: its values have changed elsewhere."""
        slot = self.find(unit)
        if slot is not None:
            slot.unit = None
        self.others.pop(id(unit), None)

    def clear(self) -> None:
        """Let go of all memory."""
        self.slots.clear()
        self.others.clear()

    @property
    def size_bytes(self) -> int:
        """Memory that is in use now."""
        return sum(slot.size_bytes for slot in [*self.slots, *self.others.values()])

    def _make(self, elements: int) -> Slot:
        if self.link.is_apart:
            slot = Slot(self.link.on_device(elements), None)
            slot.released = self.link.mark()  # zeros are written before
            return slot
        buffer = Buffer(elements)
        return Slot(buffer.values, buffer)
