"""The tiers at work: blocks fetched ahead of their use, gradients put away, updates carried out where the moments are.

On one process blocks compute on the slots that threads have filled from the disk (`InPlace`). On many, `fully_shard` asks a shard
for its values by two functions on the local tensor (`fsdp_pre_all_gather`, `fsdp_post_all_gather`), and they hand out a slot.
Nothing in the model, the loop or the optimizer step is another.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.runtime.memory import give_back_at_once, resident_bytes, trim_heap
from modelzoo.runtime.tiers.adamw import TieredAdamW
from modelzoo.runtime.tiers.direct_file import Buffer, DirectFile
from modelzoo.runtime.tiers.folder import TierFolder
from modelzoo.runtime.tiers.in_place import InPlace
from modelzoo.runtime.tiers.inputs import Inputs
from modelzoo.runtime.tiers.ledger import Ledger, Resident
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.placement import Placement
from modelzoo.runtime.tiers.ring import Ring
from modelzoo.runtime.tiers.slots import Slot
from modelzoo.runtime.tiers.staging import PIECE
from modelzoo.runtime.tiers.stand_in import AwayValues, stand_in
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.unit import CPU, KINDS, Kind, Unit, aligned
from modelzoo.runtime.tiers.updates import Updates, WhenUpdated
from modelzoo.sharded import held

__all__ = ["Tiers"]


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
        inputs: Where blocks' inputs wait for the backward; None keeps them in memory.
        link: To the device that computes.
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
        inputs: Inputs | None = None,
        link: Link = CPU,
    ) -> None:
        self.units, self.when, self.placement, self.traffic, self.link = units, when, placement, traffic, link
        self._folder, self._files = folder, files
        self.ring = Ring(units, slot_count, link)
        self.ledger = Ledger(units)
        self.updates = Updates(units, self.ring, when)
        self.inputs = inputs
        self._at_work = InPlace(self.ring, self.resident)
        self.heap_limit: int | None = None
        """Bytes of this process beyond which glibc keeps no freed memory any more."""
        self.ends_with: list[Callable[[], None]] = []
        """What is to be closed before the tiers are."""
        self._piece: Buffer | None = None
        self._in_use: dict[tuple[int, int], Slot] = {}
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
                local.away = AwayValues(self, unit, number, "parameters")
            if place.parameter.requires_grad and (self.when == "in_backward" or unit.homes["gradients"] != "memory"):
                place.parameter.register_post_accumulate_grad_hook(partial(self._take_gradient, unit, number))
        if not unit.is_streamed:
            return
        if isinstance(unit.module, FSDPModule):
            self._attach_shards(unit, unit.module)
        else:
            self._at_work.attach(unit, is_block=unit.is_block)

    def _attach_shards(self, unit: Unit, module: FSDPModule) -> None:
        """Let `fully_shard` ask for the values of a unit."""
        for number, place in enumerate(unit.places):
            local: Any = held(place.parameter)
            if not local.untyped_storage().nbytes():  # taken away when the model was given its memory
                local.untyped_storage().resize_(4 * torch.Size(place.padded).numel())
            local.fsdp_pre_all_gather = partial(self._hand_out, unit, number)
            local.fsdp_post_all_gather = partial(self._take_back, unit, number)
        # at its first use it looks at the shards' memory and finds the two functions; later it needs no memory
        module.unshard()
        module.reshard()
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
        values = slot.values[place.start : place.start + count].view(place.padded)
        return (values if mp_policy.param_dtype is None else values.to(mp_policy.param_dtype),), None

    def _take_back(
        self, unit: Unit, number: int, outputs: tuple[Tensor, ...], metadata: None, dtype: torch.dtype, *, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Hear that a shard's values were copied out of the slot."""
        self.ring.slots.release(self._in_use.pop((self._index[id(unit)], number)))
        return (outputs[0], ()) if out is None else None

    # -- updating --------------------------------------------------------------------------------------------------------------

    def use(self, optimizer: TieredAdamW) -> None:
        """Take the optimizer whose options hold."""
        self.updates.optimizer = optimizer

    def publish(self) -> None:
        """Carry a step out: now, or when each unit's turn comes; in the backward it was done already.

        Raises:
            SaveError: A value could not be read or written.
        """
        self.resident()
        if self.when == "deferred" or self.link.is_apart:  # else what is at work is updated where it is
            self._at_work.let_go()
        self.updates.publish()
        self.ring.fetch_next()
        if self.heap_limit is not None and resident_bytes() > self.heap_limit:
            give_back_at_once()
            trim_heap()
            self.heap_limit = None

    def flush(self) -> None:
        """Carry out every update that is still pending: before anything but a forward looks at the values.

        Raises:
            SaveError: A value could not be read or written.
        """
        self.updates.flush()

    def _take_gradient(self, unit: Unit, number: int, parameter: nn.Parameter) -> None:
        self.updates.take_gradient(unit, number, parameter)

    # -- reading and writing from outside -------------------------------------------------------------------------------------

    def moment(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return the tensor that stands for a moment of a parameter."""
        unit, number = self._where[id(parameter)]
        assert kind in ("exp_avg", "exp_avg_sq")
        return stand_in(parameter, AwayValues(self, unit, number, kind))  # type: ignore[arg-type]  # one of the two kinds

    def read(self, unit: Unit, number: int, kind: Kind) -> Tensor:
        """Return a parameter's values of a kind, up to date, in memory of their own on the device that computes.

        Raises:
            SaveError: They could not be read, or an update before could not be carried out.
        """
        self.flush()
        place = unit.places[number]
        buffer = Buffer(aligned(place.numel))
        values = unit.region(kind).load(place.start, place.start + place.numel, buffer)
        if values.data_ptr() != buffer.values.data_ptr():
            values = values.clone()
        return values.view(held(place.parameter).shape).to(self.link.device)

    def write(self, unit: Unit, number: int, kind: Kind, values: Tensor) -> None:
        """Replace a parameter's values of a kind, a piece at a time.

        Raises:
            SaveError: They could not be written, or an update before could not be carried out.
        """
        self.flush()
        self._at_work.let_go()
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
        places = {"host": "in host memory", "disk": f"on disk ({self._folder.path if self._folder is not None else ''})"}
        away = []
        for home, where in places.items():
            counts = {kind: sum(unit.homes[kind] == home for unit in self.units) for kind in KINDS}
            parts = [f"{kind} of {count} of {len(self.units)} units" for kind, count in counts.items() if count]
            if home == "disk" and self.inputs is not None:
                parts.append("inputs of blocks that are computed again")
            away += [f"{', '.join(parts)} {where}"] if parts else []
        return f"{'; '.join(away)}, updated {self.when}" if away else "everything fits into memory; nothing is moved"

    def resident(self) -> Resident:
        """Return what is in memory now; `ledger.peak` has the most that any step has seen."""
        piece = self._piece.size_bytes if self._piece is not None else 0
        scratch = self.ring.scratch_bytes + self.updates.staging.size_bytes + piece
        inputs = self.inputs.size_bytes if self.inputs is not None else 0
        return self.ledger.count(slots=self.ring.slots.size_bytes, scratch=scratch, inputs=inputs, is_apart=self.link.is_apart)

    @property
    def inputs_on_disk(self) -> int:
        """Bytes of blocks' inputs that wait for the backward on disk."""
        return self.inputs.on_disk_bytes if self.inputs is not None else 0

    @property
    def waited_s(self) -> float:
        """Seconds in which the model waited for the disk or for an update."""
        return self.ring.waited_s + (self.inputs.worker.waited_s if self.inputs is not None else 0.0)

    def close(self) -> None:
        """Stop the threads and remove the files; the model cannot be used any more."""
        for end in self.ends_with:
            end()
        self._at_work.let_go()
        if self.inputs is not None:
            self.inputs.close()
        self.ring.close()
        self.link.close()
        for unit in self.units:
            unit.regions.clear()
        for file in self._files:
            file.close()
        if self._folder is not None:
            self._folder.close()
