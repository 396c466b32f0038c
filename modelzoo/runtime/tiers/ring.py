"""Units on their way: read into slots ahead of their use, updated there if a step is pending, and written back."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from torch import Tensor

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.access_order import AccessOrder
from modelzoo.runtime.tiers.adamw import Options, update_unit
from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.slots import Slot, Slots, slot_elements
from modelzoo.runtime.tiers.unit import Unit
from modelzoo.runtime.tiers.worker import Worker

__all__ = ["Gradients", "Ring", "filled"]

Gradients = Mapping[int, Tensor]
"""By place number: flat values in memory."""


def filled(slot: Slot) -> Future[None]:
    """Return the work that fills a slot which was started."""
    assert slot.filled is not None
    return slot.filled


class Ring:
    """The slots, the threads that fill them, and the updates that wait for their unit's turn.

    Args:
        units: Of a model; those that are streamed pass through the slots.
        slot_count: How many of them.
    """

    def __init__(self, units: Sequence[Unit], slot_count: int) -> None:
        self.units = units
        self._index = {id(unit): number for number, unit in enumerate(units)}
        self.slots = Slots(slot_count, slot_elements(unit.elements for unit in units if unit.is_streamed))
        self.worker = Worker()
        self.pending: dict[int, tuple[Options, Gradients]] = {}
        """Updates by the id of their unit; of the caller's thread alone."""
        self._order = AccessOrder()

    def fetch(self, unit: Unit) -> Slot:
        """Return the slot with a unit's current values, and start on what comes after it.

        Raises:
            SaveError: They could not be read.
        """
        slot = self.slots.find(unit)
        is_new_use = slot is None or not slot.users
        if slot is None:
            slot = self.start(unit)
        if slot.filled is not None:
            self.worker.wait(slot.filled)
        self.slots.touch(slot)
        if is_new_use:
            slot.users += 1  # so that what is fetched ahead does not take it
            self._fetch_ahead(self._index[id(unit)])
            slot.users -= 1
        return slot

    def start(self, unit: Unit) -> Slot:
        """Let a unit that no slot holds be read into one, and updated if a step is pending."""
        slot = self.slots.take(unit)
        if slot is None:
            for other in self.slots.slots:
                if other.filled is not None and not other.users:
                    self.worker.wait(other.filled)
            slot = self.slots.take(unit)
        if slot is None:
            raise ConfigError(f"memory.slots={self.slots.count}: all are in use while {unit.name} is needed; use more")
        self._fill(unit, slot)
        return slot

    def _fill(self, unit: Unit, slot: Slot) -> None:
        update = self.pending.pop(id(unit), None)
        slot.filled = self.worker.submit(self._read, unit, slot.buffer, update)

    def _read(self, unit: Unit, buffer: Buffer, update: tuple[Options, Gradients] | None) -> None:
        """Read a unit's values, and update them. In a thread."""
        values = unit.regions["parameters"].load(0, unit.elements, buffer)
        if update is not None:
            self.update(unit, *update, values, buffer)

    def _fetch_ahead(self, current: int) -> None:
        """Fill free slots with the units that came after this one the last time."""
        for following in self._order.after(current, self.slots.count - 1):
            unit = self.units[following]
            slot = self.slots.find(unit)
            if slot is not None:
                self.slots.touch(slot)
            elif unit.elements <= self.slots.elements:
                slot = self.slots.take(unit)
                if slot is None:
                    return
                self._fill(unit, slot)

    def update(self, unit: Unit, options: Options, gradients: Gradients, values: Tensor | None, buffer: Buffer | None) -> None:
        """Update a unit's values and keep them. In a thread.

        Args:
            unit: Whose values.
            options: Of the step.
            gradients: Those that are in memory.
            values: Of a streamed unit, in `buffer`.
            buffer: Of a slot.
        """
        update_unit(unit, options, values, gradients, self.worker.scratch, self.worker.lane)
        if values is not None and buffer is not None:
            unit.regions["parameters"].store(0, values, buffer)

    def settle(self) -> None:
        """Wait for everything that slots are being filled with.

        Raises:
            SaveError: Something could not be read or written.
        """
        for slot in [*self.slots.slots, *self.slots.oversized.values()]:
            if slot.filled is not None:
                self.worker.wait(slot.filled)
        self.worker.check()
