"""Values of a unit on their way to its update and back, a piece at a time, through a few buffers of each thread.

While a piece is computed the next one is read and the last one is written. Values that are where the update runs have no way to go.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.unit import CPU, KINDS, Kind, Unit
from modelzoo.sharded import local_values

__all__ = ["SCRATCH_SETS", "UPDATE_PIECE", "WRITTEN", "Piece", "Scratch", "Way"]

UPDATE_PIECE = 2**19
"""float32 values that are updated at a time: they stay in the cache, and while they are, the next ones are read."""
SCRATCH_SETS = 2
READ: tuple[Kind, ...] = ("exp_avg", "exp_avg_sq", "gradients")
WRITTEN: tuple[Kind, ...] = ("parameters", "exp_avg", "exp_avg_sq")


class Scratch:
    """Two sets of buffers of one piece for each kind that is read from below: one is updated, one on its way.

    Args:
        link: To the device that computes.
    """

    def __init__(self, link: Link = CPU) -> None:
        self._link = link
        self._sets: list[dict[Kind, Buffer]] = [{} for _ in range(SCRATCH_SETS)]
        for each in self._sets:
            each.update({kind: self._make(UPDATE_PIECE) for kind in READ})
        self._whole = Buffer(0)

    def piece(self, turn: int, kind: Kind) -> Buffer:
        """Return the buffer of a kind for the pieces of every second turn; parameters have one below an accelerator alone."""
        each = self._sets[turn % SCRATCH_SETS]
        if kind not in each:
            each[kind] = self._make(UPDATE_PIECE)
        return each[kind]

    def whole(self, elements: int) -> Buffer:
        """Return a buffer for a whole unit."""
        if 4 * elements > self._whole.size_bytes:
            self._whole = self._make(elements)
        return self._whole

    def _make(self, elements: int) -> Buffer:
        buffer = Buffer(elements)
        self._link.pin(buffer.values)
        return buffer

    @property
    def size_bytes(self) -> int:
        """Their memory."""
        return self._whole.size_bytes + sum(buffer.size_bytes for each in self._sets for buffer in each.values())


@dataclass(slots=True, frozen=True)
class Piece:
    """Values of one parameter that are updated at a time."""

    number: int
    """Of the place."""
    low: int
    high: int


class Way:
    """Pieces on their way to the update and back: while one is computed, the next is read and the last is written.

    Args:
        unit: Whose pieces.
        parameters: Its parameter region in the memory where it is updated; None for parameters where torch has them.
        gradients: In the memory of the model, by place number.
        scratch: Buffers that pieces go through.
        lane: Threads for what has a way to go.
        after: Event from which on the gradients are there.
    """

    def __init__(
        self,
        unit: Unit,
        parameters: Tensor | None,
        gradients: Mapping[int, Tensor],
        scratch: Scratch,
        lane: Executor | None,
        after: Any,
    ) -> None:
        self._unit, self._parameters, self._gradients, self._scratch, self._after = unit, parameters, gradients, scratch, after
        # what is all in memory has no way to go
        self._lane = lane if unit.is_mixed or any(unit.homes[kind] == "disk" for kind in READ) else None
        self._reads: dict[int, dict[Kind, Future[Tensor]]] = {}
        self._writes: dict[int, list[Future[None]]] = {}

    def take(self, turn: int, piece: Piece, following: Piece | None) -> dict[Kind, Tensor]:
        """Return a piece's values of every kind, and start on the next one."""
        direct = {kind: here for kind in KINDS if (here := self._here(piece, kind)) is not None and not self._is_away(kind)}
        if self._lane is None:
            return direct | {kind: self._load(turn, piece, kind) for kind in self._moved(piece, KINDS)}
        if turn not in self._reads:
            self._start(turn, piece)
        read = {kind: future.result() for kind, future in self._reads.pop(turn).items()}
        if following is not None:
            self._start(turn + 1, following)
        return direct | read

    def give_back(self, turn: int, piece: Piece, values: Mapping[Kind, Tensor]) -> None:
        """Keep a piece's parameters and moments."""
        if self._lane is None:
            for kind in self._moved(piece, WRITTEN):
                self._store(turn, piece, kind, values[kind])
        else:
            lane = self._lane
            moved = self._moved(piece, WRITTEN)
            self._writes[turn] = [lane.submit(self._store, turn, piece, kind, values[kind]) for kind in moved]

    def settle(self) -> None:
        """Wait until everything is written."""
        for writes in self._writes.values():
            for write in writes:
                write.result()

    def _start(self, turn: int, piece: Piece) -> None:
        for write in self._writes.pop(turn - SCRATCH_SETS, ()):  # from the same buffers
            write.result()
        assert self._lane is not None
        self._reads[turn] = {kind: self._lane.submit(self._load, turn, piece, kind) for kind in self._moved(piece, KINDS)}

    def _moved(self, piece: Piece, kinds: Iterable[Kind]) -> list[Kind]:
        """Return those kinds of a piece that are not where the update runs."""
        return [kind for kind in kinds if self._is_away(kind) or self._here(piece, kind) is None]

    def _load(self, turn: int, piece: Piece, kind: Kind) -> Tensor:
        """Return a piece's values in the memory where it is updated."""
        start, here, buffer = self._unit.places[piece.number].start, self._here(piece, kind), self._scratch.piece(turn, kind)
        if here is None:
            return self._unit.region(kind).load(start + piece.low, start + piece.high, buffer)
        values = buffer.values[: len(here)]
        self._unit.link.to_host(values, here, self._after)
        return values

    def _store(self, turn: int, piece: Piece, kind: Kind, values: Tensor) -> None:
        """Keep a piece's values where they live."""
        start, here = self._unit.places[piece.number].start, self._here(piece, kind)
        if here is None:
            self._unit.region(kind).store(start + piece.low, values, self._scratch.piece(turn, kind))
        else:
            self._unit.link.to_device(here, values)

    def _here(self, piece: Piece, kind: Kind) -> Tensor | None:
        """Return a piece's values that are in no region of its unit, or None."""
        place = self._unit.places[piece.number]
        if kind == "parameters":
            if self._parameters is None:
                return local_values(place.parameter).view(-1)[piece.low : piece.high]
            return self._parameters[place.start + piece.low : place.start + piece.high]
        if kind == "gradients" and piece.number in self._gradients:
            return self._gradients[piece.number][piece.low : piece.high]
        return None

    def _is_away(self, kind: Kind) -> bool:
        """Return whether values of a kind that are in no region are on the device while the update is on the host."""
        is_torchs = (kind == "parameters" and self._parameters is None) or kind == "gradients"
        return self._unit.is_mixed and is_torchs
