"""Units on their way: brought into slots ahead of their use, updated if a step is pending, and written back.

Slots are where the model computes. On a CPU a unit is read from the disk into its slot and updated there; below an accelerator it
is updated in the host's memory, its home or a buffer that the disk is read into, and then copied to the device.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.access_order import AccessOrder
from modelzoo.runtime.tiers.adamw import Options, update_unit
from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.slots import Slot, Slots
from modelzoo.runtime.tiers.unit import CPU, Unit
from modelzoo.runtime.tiers.worker import Worker

__all__ = ["Gradients", "Ring", "Update", "filled"]

Gradients = Mapping[int, Tensor]
"""By place number: flat values in the memory of the model."""
Update = tuple[Options, Gradients, Any]
"""What a unit is updated by, and the event from which on its gradients are there."""


def filled(slot: Slot) -> Future[None]:
    """Return the work that fills a slot which was started."""
    assert slot.filled is not None
    return slot.filled


class Ring:
    """The slots, the threads that fill them, and the updates that wait for their unit's turn.

    Args:
        units: Of a model; those that are streamed pass through the slots.
        slot_count: How many of them.
        link: To the device that computes.
    """

    def __init__(self, units: Sequence[Unit], slot_count: int, link: Link = CPU) -> None:
        self.units, self.link = units, link
        self._index = {id(unit): number for number, unit in enumerate(units)}
        self.slots = Slots(slot_count, max((unit.elements for unit in units if unit.is_block), default=0), link)
        self.worker = Worker(link=link)
        self.back = Worker(link=link) if link.is_apart else self.worker
        """For gradients and updates, which wait for the device; what the device waits for must not stand behind them."""
        self._updating: dict[int, Future[None]] = {}
        self.pending: dict[int, Update] = {}
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
        self.wait_for(slot)
        self.slots.touch(slot)
        if is_new_use:
            slot.users += 1  # so that what is fetched ahead does not take it
            self._fetch_ahead(self._index[id(unit)])
            slot.users -= 1
        return slot

    def wait_for(self, slot: Slot) -> None:
        """Wait until a slot's values are there.

        Raises:
            SaveError: They could not be read or written.
        """
        if slot.filled is not None:
            self.worker.wait(slot.filled)

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
        slot.filled = self.worker.submit(self._read, unit, slot, update, self._updating.pop(id(unit), None))

    def _read(self, unit: Unit, slot: Slot, update: Update | None, before: Future[None] | None) -> None:
        """Read a unit's values, and update them. In a thread."""
        if before is not None:
            before.result()
        buffer = slot.buffer if slot.buffer is not None else self._way_buffer(unit, self.worker)
        values = unit.regions["parameters"].load(0, unit.elements, buffer)
        if update is not None:
            self._update(unit, *update, values, buffer, self.worker)
        if slot.buffer is None:
            self.link.to_device(slot.values[: unit.elements], values, slot.released)

    def _way_buffer(self, unit: Unit, worker: Worker) -> Buffer:
        """Return the host memory through which a unit comes from the disk to a device; one at home in it needs none."""
        return worker.scratch.whole(unit.elements if unit.homes["parameters"] == "disk" else 0)

    def _fetch_ahead(self, current: int) -> None:
        """Fill free slots with the units that came after this one the last time, the nearest first."""
        self._order.note(current)
        self._fetch_expected(self.slots.count - 1, has_others=False)

    def fetch_next(self) -> None:
        """Begin with what the next forward needs, between two steps.

        Raises:
            SaveError: Something before could not be read or written.
        """
        self._fetch_expected(self.slots.count, has_others=True)

    def _fetch_expected(self, count: int, *, has_others: bool) -> None:
        expected = [self.units[following] for following in self._order.expected(count)]
        for unit in expected:
            slot = self.slots.find(unit)
            if slot is not None:
                self.slots.touch(slot)
            elif unit.is_block or has_others:
                slot = self.slots.take(unit, expected)
                if slot is None:
                    return
                self._fill(unit, slot)

    def update(self, unit: Unit, update: Update) -> Future[None]:
        """Let a unit be updated now, and return the work; what its slot holds is current afterwards, or it holds nothing.

        Raises:
            SaveError: Something before could not be read or written.
        """
        if not unit.is_streamed:
            return self.back.submit(self._update, unit, *update, None, None, self.back)
        slot = self.slots.find(unit)
        if self.link.is_apart:
            if slot is not None and slot.filled is not None:
                self.worker.wait(slot.filled)
            self.slots.forget(unit)
            work = self._updating[id(unit)] = self.back.submit(self._update_below, unit, update)
        elif slot is not None:
            if slot.filled is not None:
                self.worker.wait(slot.filled)
            values = slot.values[: unit.elements]
            work = slot.filled = self.worker.submit(self._update, unit, *update, values, slot.buffer, self.worker)
        else:
            self.pending[id(unit)] = update
            work = filled(self.start(unit))
        return work

    def _update_below(self, unit: Unit, update: Update) -> None:
        """Update a unit in the host's memory. In a thread."""
        buffer = self._way_buffer(unit, self.back)
        values = unit.regions["parameters"].load(0, unit.elements, buffer)
        self._update(unit, *update, values, buffer, self.back)

    def _update(
        self,
        unit: Unit,
        options: Options,
        gradients: Gradients,
        after: Any,
        values: Tensor | None,
        buffer: Buffer | None,
        worker: Worker,
    ) -> None:
        """Update a unit's values and keep them. In a thread.

        Args:
            unit: Whose values.
            options: Of the step.
            gradients: Those that are in the memory of the model.
            after: Event from which on they are there.
            values: Of a streamed unit, in `buffer`.
            buffer: Of a slot, or on the way to one.
            worker: Whose thread it is.
        """
        update_unit(unit, options, values, gradients, worker.scratch, worker.lane, after)
        if values is not None and buffer is not None:
            unit.regions["parameters"].store(0, values, buffer)

    def settle(self) -> None:
        """Wait for everything that slots are being filled with.

        Raises:
            SaveError: Something could not be read or written.
        """
        for slot in [*self.slots.slots, *self.slots.others.values()]:
            if slot.filled is not None:
                self.worker.wait(slot.filled)
        self.worker.check()
        self.back.check()

    def close(self) -> None:
        """End the threads and let the slots go."""
        self.worker.close()
        if self.back is not self.worker:
            self.back.close()
        self.slots.clear()

    @property
    def scratch_bytes(self) -> int:
        """Host memory of the threads' buffers."""
        return self.worker.size_bytes + (self.back.size_bytes if self.back is not self.worker else 0)

    @property
    def waited_s(self) -> float:
        """Seconds in which the model waited for a thread."""
        return self.worker.waited_s + (self.back.waited_s if self.back is not self.worker else 0.0)
