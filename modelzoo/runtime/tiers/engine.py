"""The tiers at work: blocks fetched ahead of their use, gradients put away, updates carried out where the moments are.

`fully_shard` asks a shard for its values by two functions on the local tensor (`fsdp_pre_all_gather`, `fsdp_post_all_gather`); here
they hand out a slot that a thread has filled from the disk. Nothing in the model, the loop or the optimizer step is another.
"""

from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.adamw import PIECE, Options, TieredAdamW
from modelzoo.runtime.tiers.direct_file import Buffer, DirectFile
from modelzoo.runtime.tiers.folder import TierFolder
from modelzoo.runtime.tiers.ledger import Ledger, Resident
from modelzoo.runtime.tiers.placement import Placement
from modelzoo.runtime.tiers.ring import Gradients, Ring, filled
from modelzoo.runtime.tiers.slots import Slot
from modelzoo.runtime.tiers.stand_in import AwayGradient, AwayValues, stand_in
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.unit import KINDS, Kind, Unit, aligned
from modelzoo.runtime.tiers.worker import WORKERS
from modelzoo.sharded import held, local_values

__all__ = ["Tiers", "WhenUpdated"]

WhenUpdated = Literal["step", "in_backward", "deferred"]


class Tiers:
    """The tiers of one model on one rank.

    Args:
        units: With their regions open.
        placement: That gave them their homes.
        slot_count: Blocks on their way at a time.
        when: When updates are carried out.
        folder: Of the disk tier; None without one.
        files: Open in it.
        traffic: Where the regions count their bytes.
        is_filled: Whether the parameters have values yet that must go where they live.
    """

    def __init__(
        self,
        units: list[Unit],
        *,
        placement: Placement,
        slot_count: int,
        when: WhenUpdated,
        folder: TierFolder | None,
        files: list[DirectFile],
        traffic: DiskTraffic,
        is_filled: bool = True,
    ) -> None:
        self.units, self.when, self.placement, self.traffic = units, when, placement, traffic
        self._folder, self._files = folder, files
        self.ring = Ring(units, slot_count)
        self.ledger = Ledger(units)
        self._piece: Buffer | None = None
        self._optimizer: TieredAdamW | None = None
        self._updates: list[Future[None]] = []
        self._in_use: dict[tuple[int, int], Slot] = {}
        self._arrived: dict[int, int] = {}
        self._updated: set[int] = set()
        self._index = {id(unit): number for number, unit in enumerate(units)}
        self._where: dict[int, tuple[Unit, int]] = {
            id(place.parameter): (unit, number) for unit in units for number, place in enumerate(unit.places)
        }
        for unit in units:
            self._attach(unit, is_filled=is_filled)
        self.ledger = Ledger(units)  # from here on: before, the values were on their way to where they live

    # -- what the model sees ---------------------------------------------------------------------------------------------------

    def _attach(self, unit: Unit, *, is_filled: bool) -> None:
        for number, place in enumerate(unit.places):
            if unit.is_streamed:
                local: Any = held(place.parameter)
                if is_filled:
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
        slot = self.ring.fetch(unit)
        slot.users += 1
        if number == 0:
            self.resident()
        self._in_use[self._index[id(unit)], number] = slot
        place = unit.places[number]
        count = torch.Size(place.padded).numel()
        values = slot.buffer.values[place.start : place.start + count].view(place.padded)
        return (values if mp_policy.param_dtype is None else values.to(mp_policy.param_dtype),), None

    def _take_back(
        self, unit: Unit, number: int, outputs: tuple[Tensor, ...], metadata: None, dtype: torch.dtype, *, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Hear that a shard's values were copied out of the slot."""
        self.ring.slots.release(self._in_use.pop((self._index[id(unit)], number)))
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
            if self._arrived[key] == sum(place.parameter.requires_grad for place in unit.places):
                self._update_now(unit)
            return
        away = getattr(parameter, "away_gradient", None) or AwayGradient(unit, number)
        away.add(local_values(gradient).reshape(-1), self._piece_buffer(), PIECE)
        parameter.away_gradient = away  # type: ignore[attr-defined]  # read by clip_grad_norm
        parameter.grad = None

    # -- updating --------------------------------------------------------------------------------------------------------------

    def use(self, optimizer: TieredAdamW) -> None:
        """Take the optimizer whose options hold."""
        self._optimizer = optimizer

    def publish(self) -> None:
        """Carry a step out: now, or when each unit's turn comes; in the backward it was done already.

        Raises:
            SaveError: A value could not be read or written.
        """
        self.ring.worker.check()
        self.resident()
        for unit in self.units:
            if self.when == "in_backward":
                if self._arrived.get(id(unit)):
                    self._update_now(unit)  # parameters that had no gradient are not waited for
                for place in unit.places:
                    place.parameter.__dict__.pop("away_gradient", None)
            else:
                self._publish(unit)
        self._updated.clear()
        self._wait_for_updates()

    def _publish(self, unit: Unit) -> None:
        if id(unit) in self.ring.pending:  # it was in no forward since the last step
            self.ring.worker.wait(filled(self.ring.start(unit)))
        gradients = self._gradients_in_memory(unit)
        options = self._options(unit, gradients)
        if not options:
            return
        for number in unit.stored_gradients:
            unit.places[number].parameter.__dict__.pop("away_gradient", None)
        if self.when == "deferred" and unit.is_streamed:
            self.ring.slots.forget(unit)
            self.ring.pending[id(unit)] = (options, gradients)
        else:
            self._apply(unit, options, gradients)

    def _update_now(self, unit: Unit) -> None:
        """Update a unit whose gradients are all there, in the backward; few at a time, for their gradients take memory."""
        self._arrived[id(unit)] = 0
        self._updated.add(id(unit))
        gradients = self._gradients_in_memory(unit)
        while len(self._updates) >= WORKERS:
            self.ring.worker.wait(self._updates.pop(0))
        self._apply(unit, self._options(unit, gradients), gradients)
        for place in unit.places:
            place.parameter.grad = None

    def flush(self) -> None:
        """Carry out every update that is still pending: before anything but a forward looks at the values.

        Raises:
            SaveError: A value could not be read or written.
        """
        for unit in self.units:
            if id(unit) in self.ring.pending:
                slot = self.ring.start(unit)
                if unit.elements > self.ring.slots.elements:
                    self.ring.worker.wait(filled(slot))
                    self.ring.slots.forget(unit)
        self.ring.settle()
        self._wait_for_updates()

    def _apply(self, unit: Unit, options: Options, gradients: Gradients) -> None:
        """Let a unit be updated."""
        if not unit.is_streamed:
            self._updates.append(self.ring.worker.submit(self.ring.update, unit, options, gradients, None, None))
            return
        slot = self.ring.slots.find(unit)
        if slot is not None:
            if slot.filled is not None:
                self.ring.worker.wait(slot.filled)
            values = slot.buffer.values[: unit.elements]
            slot.filled = self.ring.worker.submit(self.ring.update, unit, options, gradients, values, slot.buffer)
        else:
            self.ring.pending[id(unit)] = (options, gradients)
            slot = self.ring.start(unit)
        self._updates.append(filled(slot))
        if unit.elements > self.ring.slots.elements and not slot.users:
            self.ring.worker.wait(filled(slot))
            self.ring.slots.forget(unit)

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
            self.ring.worker.wait(update)

    # -- reading and writing from outside -------------------------------------------------------------------------------------

    def moment(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return the tensor that stands for a moment of a parameter."""
        unit, number = self._where[id(parameter)]
        assert kind in ("exp_avg", "exp_avg_sq")
        return stand_in(parameter, AwayValues(self, unit, number, kind))  # type: ignore[arg-type]  # one of the two kinds

    def read(self, unit: Unit, number: int, kind: Kind) -> Tensor:
        """Return a parameter's values of a kind, up to date, in memory of their own.

        Raises:
            SaveError: They could not be read, or an update before could not be carried out.
        """
        self.flush()
        place = unit.places[number]
        buffer = Buffer(aligned(place.numel))
        values = unit.region(kind).load(place.start, place.start + place.numel, buffer)
        if values.data_ptr() != buffer.values.data_ptr():
            values = values.clone()
        return values.view(held(place.parameter).shape)

    def write(self, unit: Unit, number: int, kind: Kind, values: Tensor) -> None:
        """Replace a parameter's values of a kind, a piece at a time.

        Raises:
            SaveError: They could not be written, or an update before could not be carried out.
        """
        self.flush()
        place, flat, buffer = unit.places[number], values.reshape(-1), self._piece_buffer()
        for low in range(0, place.numel, PIECE):
            piece = flat[low : low + PIECE]
            buffer.values[: len(piece)].copy_(piece)
            unit.region(kind).store(place.start + low, buffer.values[: len(piece)], buffer)
        if kind == "parameters":
            self.ring.slots.forget(unit)

    def _piece_buffer(self) -> Buffer:
        if self._piece is None:
            self._piece = Buffer(PIECE)
        return self._piece

    def describe(self) -> str:
        """Return where values live, in one line."""
        counts = {kind: sum(unit.homes[kind] == "disk" for unit in self.units) for kind in KINDS}
        away = ", ".join(f"{kind} of {count} of {len(self.units)} units" for kind, count in counts.items() if count)
        where = self._folder.path if self._folder is not None else ""
        return f"{away} on disk ({where}), updated {self.when}" if away else "everything fits into memory; nothing is moved"

    def resident(self) -> Resident:
        """Return what is in memory now; `ledger.peak` has the most that any step has seen."""
        scratch = self.ring.worker.size_bytes + (self._piece.size_bytes if self._piece is not None else 0)
        return self.ledger.count(slots=self.ring.slots.size_bytes, scratch=scratch)

    def close(self) -> None:
        """Stop the threads and remove the files; the model cannot be used any more."""
        self.ring.worker.close()
        self.ring.slots.clear()
        for unit in self.units:
            unit.regions.clear()
        for file in self._files:
            file.close()
        if self._folder is not None:
            self._folder.close()
