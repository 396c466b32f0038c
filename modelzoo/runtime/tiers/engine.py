"""The tiers at work: blocks fetched ahead of their use, gradients put away, updates carried out where the moments are.

`fully_shard` asks a shard for its values by two functions on the local tensor (`fsdp_pre_all_gather`, `fsdp_post_all_gather`); here
they hand out a slot that a thread has filled from the disk. Nothing in the model, the loop or the optimizer step is another.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.adamw import PIECE, Options, Scratch, TieredAdamW, update_unit
from modelzoo.runtime.tiers.direct_file import Buffer, DirectFile
from modelzoo.runtime.tiers.folder import TierFolder
from modelzoo.runtime.tiers.slots import Slot, Slots
from modelzoo.runtime.tiers.stand_in import AwayGradient, AwayValues, stand_in
from modelzoo.runtime.tiers.unit import KINDS, Kind, Unit
from modelzoo.sharded import held, local_values

__all__ = ["Tiers", "WhenUpdated"]

WhenUpdated = Literal["step", "in_backward", "deferred"]
Gradients = Mapping[int, Tensor]


class Tiers:
    """The tiers of one model on one rank.

    Args:
        units: With their regions open.
        slot_count: Blocks on their way at a time.
        when: When updates are carried out.
        folder: Of the disk tier; None without one.
        files: Open in it.
    """

    def __init__(
        self, units: list[Unit], *, slot_count: int, when: WhenUpdated, folder: TierFolder | None, files: list[DirectFile]
    ) -> None:
        self.units, self.when = units, when
        self._folder, self._files = folder, files
        streamed = [unit.elements for unit in units if unit.is_streamed]
        # a unit much larger than the blocks (the embeddings) gets memory of its own, so that slots stay the size of a block
        common = sorted(streamed)[len(streamed) // 2] if streamed else 0
        self.slots = Slots(slot_count, max((size for size in streamed if size <= 2 * common), default=0))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="modelzoo-tiers")
        self._scratch = Scratch()
        self._gradient_buffer = Buffer(PIECE)
        self._optimizer: TieredAdamW | None = None
        self._pending: dict[int, tuple[Options, Gradients]] = {}
        self._updates: list[Future[None]] = []
        self._in_use: dict[tuple[int, int], Slot] = {}
        self._arrived: dict[int, int] = {}
        self._updated: set[int] = set()
        self._index = {id(unit): number for number, unit in enumerate(units)}
        self._where: dict[int, tuple[Unit, int]] = {
            id(place.parameter): (unit, number) for unit in units for number, place in enumerate(unit.places)
        }
        self._followed_by: dict[tuple[int, int], int] = {}
        self._last = (-1, -1)
        for unit in units:
            self._attach(unit)

    # -- what the model sees ---------------------------------------------------------------------------------------------------

    def _attach(self, unit: Unit) -> None:
        for number, place in enumerate(unit.places):
            if unit.is_streamed:
                local: Any = held(place.parameter)
                self.write(unit, number, "parameters", local.detach())
                local.fsdp_pre_all_gather = partial(self._hand_out, unit, number)
                local.fsdp_post_all_gather = partial(self._take_back, unit, number)
                local.away = AwayValues(self, unit, number, "parameters")
            if place.parameter.requires_grad and (self.when == "in_backward" or unit.homes["gradients"] == "disk"):
                place.parameter.register_post_accumulate_grad_hook(partial(self._take_gradient, unit, number))
        if unit.is_streamed:
            assert isinstance(unit.module, FSDPModule)
            # at its first use `fully_shard` looks at the shards' memory and finds the two functions; later it needs no memory
            unit.module.unshard()
            unit.module.reshard()
            for place in unit.places:
                held(place.parameter).untyped_storage().resize_(0)

    def _hand_out(
        self, unit: Unit, number: int, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor], None]:
        """Return a shard's values in a slot."""
        slot = self._fetch(unit)
        slot.users += 1
        self._in_use[self._index[id(unit)], number] = slot
        place = unit.places[number]
        count = torch.Size(place.padded).numel()
        values = slot.buffer.values[place.start : place.start + count].view(place.padded)
        return (values if mp_policy.param_dtype is None else values.to(mp_policy.param_dtype),), None

    def _take_back(
        self, unit: Unit, number: int, outputs: tuple[Tensor, ...], metadata: None, dtype: torch.dtype, *, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Hear that a shard's values were copied out of the slot."""
        self.slots.release(self._in_use.pop((self._index[id(unit)], number)))
        return (outputs[0], ()) if out is None else None

    def _take_gradient(self, unit: Unit, number: int, parameter: nn.Parameter) -> None:
        """Take a gradient that is complete: keep it on disk, or update the unit when it has all of them."""
        gradient = parameter.grad
        assert gradient is not None
        if self.when == "in_backward":
            key = id(unit)
            if key in self._updated:
                raise ConfigError(
                    f"{unit.name}: a second backward before the optimizer's step: memory.optimizer_update=in_backward takes a step "
                    "in every backward; use deferred to accumulate"
                )
            # so that the norm is known, though too late to clip by it
            away = AwayGradient(unit, number)
            away.norm = torch._foreach_norm([local_values(gradient)])[0]
            parameter.away_gradient = away  # type: ignore[attr-defined]  # read by clip_grad_norm
            self._arrived[key] = self._arrived.get(key, 0) + 1
            wanted = sum(place.parameter.requires_grad for place in unit.places)
            if self._arrived[key] == wanted:
                self._arrived[key] = 0
                self._updated.add(key)
                gradients = self._gradients_in_memory(unit)
                self._apply(unit, self._options(unit, gradients), gradients)
                for place in unit.places:
                    place.parameter.grad = None
            return
        away = getattr(parameter, "away_gradient", None) or AwayGradient(unit, number)
        away.add(local_values(gradient).reshape(-1), self._gradient_buffer, PIECE)
        parameter.away_gradient = away  # type: ignore[attr-defined]  # read by clip_grad_norm
        parameter.grad = None

    # -- fetching --------------------------------------------------------------------------------------------------------------

    def _fetch(self, unit: Unit) -> Slot:
        """Return the slot with a unit's current values, and start on what comes after it."""
        slot = self.slots.find(unit)
        is_new_use = slot is None or not slot.users
        if slot is None:
            slot = self._start(unit)
        if slot.filled is not None:
            slot.filled.result()
        self.slots.touch(slot)
        if is_new_use:
            slot.users += 1  # so that what is fetched ahead does not take it
            self._fetch_ahead(self._index[id(unit)])
            slot.users -= 1
        return slot

    def _start(self, unit: Unit) -> Slot:
        slot = self.slots.take(unit)
        if slot is None:
            for other in self.slots.slots:
                if other.filled is not None and not other.users:
                    other.filled.result()
            slot = self.slots.take(unit)
        if slot is None:
            raise ConfigError(f"memory.slots={self.slots.count}: all are in use while {unit.name} is needed; use more")
        slot.filled = self._worker.submit(self._fill, unit, slot.buffer)
        return slot

    def _fill(self, unit: Unit, buffer: Buffer) -> None:
        """Read a unit's values, and update them first if a step is pending. In the worker."""
        values = unit.regions["parameters"].load(0, unit.elements, buffer)
        update = self._pending.pop(id(unit), None)
        if update is not None:
            self._update(unit, *update, values, buffer)

    def _fetch_ahead(self, current: int) -> None:
        """Fill free slots with the units that came after this one the last time."""
        before = self._last[1]
        self._followed_by[self._last] = current
        self._last = (before, current)
        place = self._last
        for _ in range(self.slots.count - 1):
            following = self._followed_by.get(place)
            if following is None:
                return
            unit = self.units[following]
            slot = self.slots.find(unit)
            if slot is not None:
                self.slots.touch(slot)
            elif unit.elements <= self.slots.elements:
                slot = self.slots.take(unit)
                if slot is None:
                    return
                slot.filled = self._worker.submit(self._fill, unit, slot.buffer)
            place = (place[1], following)

    # -- updating --------------------------------------------------------------------------------------------------------------

    def use(self, optimizer: TieredAdamW) -> None:
        """Take the optimizer whose options hold."""
        self._optimizer = optimizer

    def publish(self) -> None:
        """Carry a step out: now, or when each unit's turn comes; in the backward it was done already."""
        if self.when == "in_backward":
            self._updated.clear()
            for unit in self.units:
                for place in unit.places:
                    place.parameter.__dict__.pop("away_gradient", None)
        else:
            for unit in self.units:
                gradients = self._gradients_in_memory(unit)
                options = self._options(unit, gradients)
                if not options:
                    continue
                for number in unit.stored_gradients:
                    unit.places[number].parameter.__dict__.pop("away_gradient", None)
                if self.when == "deferred" and unit.is_streamed:
                    self.slots.forget(unit)
                    self._pending[id(unit)] = (options, gradients)
                else:
                    self._apply(unit, options, gradients)
        self._wait_for_updates()

    def flush(self) -> None:
        """Carry out every update that is still pending: before anything but a forward looks at the values."""
        for unit in self.units:
            if id(unit) in self._pending:
                self._start(unit)
        for slot in [*self.slots.slots, *self.slots.oversized.values()]:
            if slot.filled is not None:
                slot.filled.result()
        self.slots.oversized = {key: slot for key, slot in self.slots.oversized.items() if slot.users}
        self._wait_for_updates()

    def _apply(self, unit: Unit, options: Options, gradients: Gradients) -> None:
        """Update a unit in the worker."""
        if not unit.is_streamed:
            self._updates.append(self._worker.submit(self._update, unit, options, gradients, None, None))
            return
        slot = self.slots.find(unit)
        if slot is None:
            self._pending[id(unit)] = (options, gradients)
            slot = self._start(unit)
            assert slot.filled is not None
            self._updates.append(slot.filled)
            if unit.elements > self.slots.elements:
                slot.filled.result()
                self.slots.oversized.pop(id(unit), None)
            return
        if slot.filled is not None:
            slot.filled.result()
        slot.filled = self._worker.submit(self._update, unit, options, gradients, slot.buffer.values[: unit.elements], slot.buffer)
        self._updates.append(slot.filled)

    def _update(self, unit: Unit, options: Options, gradients: Gradients, values: Tensor | None, buffer: Buffer | None) -> None:
        """Update a unit's values and keep them. In the worker."""
        update_unit(unit, options, values, gradients, self._scratch)
        if values is not None and buffer is not None:
            unit.regions["parameters"].store(0, values, buffer)

    def _options(self, unit: Unit, gradients: Gradients) -> Options:
        if self._optimizer is None:
            raise ConfigError("a model with tiers needs their optimizer; build it with modelzoo.runtime.tiers.TieredAdamW")
        numbers = {*gradients, *unit.stored_gradients}
        return self._optimizer.options(unit.places[number].parameter for number in sorted(numbers))

    def _gradients_in_memory(self, unit: Unit) -> dict[int, Tensor]:
        found = {}
        for number, place in enumerate(unit.places):
            if place.parameter.grad is not None:
                found[number] = local_values(place.parameter.grad).reshape(-1)
        return found

    def _wait_for_updates(self) -> None:
        updates, self._updates = self._updates, []
        for update in updates:
            update.result()

    # -- reading and writing from outside -------------------------------------------------------------------------------------

    def moment(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return the tensor that stands for a moment of a parameter."""
        unit, number = self._where[id(parameter)]
        assert kind in ("exp_avg", "exp_avg_sq")
        return stand_in(parameter, AwayValues(self, unit, number, kind))  # type: ignore[arg-type]  # one of the two kinds

    def read(self, unit: Unit, number: int, kind: Kind) -> Tensor:
        """Return a parameter's values of a kind, up to date, in memory of their own."""
        self.flush()
        place = unit.places[number]
        buffer = Buffer(-(-place.numel // 1024) * 1024)
        values = unit.regions[kind].load(place.start, place.start + place.numel, buffer)
        return values.clone().view(held(place.parameter).shape)

    def write(self, unit: Unit, number: int, kind: Kind, values: Tensor) -> None:
        """Replace a parameter's values of a kind."""
        self.flush()
        place = unit.places[number]
        buffer = Buffer(-(-place.numel // 1024) * 1024)
        buffer.values[: place.numel].copy_(values.reshape(-1))
        unit.regions[kind].store(place.start, buffer.values[: place.numel], buffer)
        if kind == "parameters":
            self.slots.forget(unit)

    def describe(self) -> str:
        """Return where values live, in one line."""
        counts = {kind: sum(unit.homes[kind] == "disk" for unit in self.units) for kind in KINDS}
        away = ", ".join(f"{kind} of {count} of {len(self.units)} units" for kind, count in counts.items() if count)
        where = self._folder.path if self._folder is not None else ""
        return f"{away} on disk ({where}), updated {self.when}" if away else "everything fits into memory; nothing is moved"

    @property
    def size_bytes(self) -> int:
        """Memory that the tiers themselves take now: slots and scratch."""
        return self.slots.size_bytes + self._scratch.size_bytes + self._gradient_buffer.size_bytes

    def close(self) -> None:
        """Stop the worker and remove the files; the model cannot be used any more."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        for file in self._files:
            file.close()
        if self._folder is not None:
            self._folder.close()
