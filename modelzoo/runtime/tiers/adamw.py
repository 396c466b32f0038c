"""AdamW whose moments, and whose parameters and gradients if need be, live in the tiers; the numbers are those of torch's own.

Torch's fused kernel runs on pieces of 512 Ki values, which stay in the cache; while one is computed the next one is read and the
last one is written.
Cut at multiples of 64 values within one parameter, the results are those of the whole tensor to the last bit.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.unit import Kind, Unit
from modelzoo.sharded import local_values

__all__ = ["SCRATCH_SETS", "UPDATE_PIECE", "Options", "Publisher", "Scratch", "TieredAdamW", "update_unit"]

UPDATE_PIECE = 2**19
"""float32 values that are updated at a time: they stay in the cache, and while they are, the next ones are read."""
SCRATCH_SETS = 2


Options = Mapping[int, Mapping[str, Any]]
"""Parameter's id -> lr, betas, eps, weight_decay and the number of the step, of those that are updated."""


class Scratch:
    """Two sets of buffers of one piece for each kind that is read from below: one is updated, one on its way."""

    def __init__(self) -> None:
        self.sets = [{kind: Buffer(UPDATE_PIECE) for kind in READ} for _ in range(SCRATCH_SETS)]

    @property
    def size_bytes(self) -> int:
        """Their memory."""
        return sum(buffer.size_bytes for each in self.sets for buffer in each.values())


READ: tuple[Kind, ...] = ("exp_avg", "exp_avg_sq", "gradients")


@dataclass(slots=True, frozen=True)
class _Piece:
    """Values of one parameter that are updated at a time."""

    number: int
    """Of the place."""
    low: int
    high: int


@torch.no_grad()
def update_unit(
    unit: Unit,
    options: Options,
    parameters: Tensor | None,
    gradients: Mapping[int, Tensor],
    scratch: Scratch,
    lane: Executor | None = None,
) -> None:
    """Update a unit's values and moments.

    Args:
        unit: Its moments are read from and written to their regions.
        options: As published; parameters that are not in it stay as they are.
        parameters: The unit's parameter region, changed in place; None for parameters where torch has them.
        gradients: By place number: flat values in memory, which may be changed; those that are missing are in the region.
        scratch: Of this thread.
        lane: Threads that read the next piece and write the last one meanwhile; None does one after the other.
    """
    pieces = [
        _Piece(number, low, min(low + UPDATE_PIECE, place.numel))
        for number, place in enumerate(unit.places)
        if id(place.parameter) in options and (number in gradients or number in unit.stored_gradients)
        for low in range(0, place.numel, UPDATE_PIECE)
    ]
    way = _Way(unit, set(gradients), scratch, lane)
    for turn, piece in enumerate(pieces):
        values = way.take(turn, piece, pieces[turn + 1] if turn + 1 < len(pieces) else None)
        place = unit.places[piece.number]
        if parameters is None:
            whole = local_values(place.parameter).view(-1)
        else:
            whole = parameters[place.start : place.start + place.numel]
        if piece.number in gradients:
            gradient = gradients[piece.number][piece.low : piece.high]
        else:
            gradient = values["gradients"]
            if unit.gradient_factors[piece.number] != 1.0:
                gradient.mul_(unit.gradient_factors[piece.number])
        _fused(whole[piece.low : piece.high], gradient, values["exp_avg"], values["exp_avg_sq"], options[id(place.parameter)])
        way.give_back(turn, piece, values)
    way.settle()
    unit.stored_gradients.clear()
    unit.gradient_factors.clear()


class _Way:
    """Pieces on their way to the update and back: while one is computed, the next is read and the last is written."""

    def __init__(self, unit: Unit, in_memory: set[int], scratch: Scratch, lane: Executor | None) -> None:
        self._unit, self._in_memory, self._scratch = unit, in_memory, scratch
        # what is all in memory has no way to go
        self._lane = lane if any(unit.homes[kind] == "disk" for kind in READ) else None
        self._reads: dict[int, dict[Kind, Future[Tensor]]] = {}
        self._writes: dict[int, list[Future[None]]] = {}

    def take(self, turn: int, piece: _Piece, following: _Piece | None) -> dict[Kind, Tensor]:
        """Return a piece's moments, and its gradient where it is not in memory, and start on the next one."""
        if self._lane is None:
            return {kind: self._load(turn, piece, kind) for kind in self._kinds(piece)}
        if turn not in self._reads:
            self._start(turn, piece)
        values = {kind: future.result() for kind, future in self._reads.pop(turn).items()}
        if following is not None:
            self._start(turn + 1, following)
        return values

    def give_back(self, turn: int, piece: _Piece, values: Mapping[Kind, Tensor]) -> None:
        """Keep a piece's moments."""
        if self._lane is None:
            for kind in READ[:2]:
                self._store(turn, piece, kind, values[kind])
        else:
            lane = self._lane
            self._writes[turn] = [lane.submit(self._store, turn, piece, kind, values[kind]) for kind in READ[:2]]

    def settle(self) -> None:
        """Wait until everything is written."""
        for writes in self._writes.values():
            for write in writes:
                write.result()

    def _start(self, turn: int, piece: _Piece) -> None:
        for write in self._writes.pop(turn - SCRATCH_SETS, ()):  # from the same buffers
            write.result()
        assert self._lane is not None
        self._reads[turn] = {kind: self._lane.submit(self._load, turn, piece, kind) for kind in self._kinds(piece)}

    def _kinds(self, piece: _Piece) -> tuple[Kind, ...]:
        return READ[:2] if piece.number in self._in_memory else READ

    def _load(self, turn: int, piece: _Piece, kind: Kind) -> Tensor:
        start = self._unit.places[piece.number].start
        return self._unit.region(kind).load(start + piece.low, start + piece.high, self._buffer(turn, kind))

    def _store(self, turn: int, piece: _Piece, kind: Kind, values: Tensor) -> None:
        start = self._unit.places[piece.number].start
        self._unit.region(kind).store(start + piece.low, values, self._buffer(turn, kind))

    def _buffer(self, turn: int, kind: Kind) -> Buffer:
        return self._scratch.sets[turn % SCRATCH_SETS][kind]


def _fused(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, options: Mapping[str, Any]) -> None:
    adamw(
        [value],
        [gradient],
        [first],
        [second],
        [],
        [torch.tensor(float(options["step"] - 1))],
        fused=True,
        amsgrad=False,
        beta1=options["betas"][0],
        beta2=options["betas"][1],
        lr=options["lr"],
        weight_decay=options["weight_decay"],
        eps=options["eps"],
        maximize=False,
    )


class TieredAdamW(Optimizer):
    """AdamW over a model with tiers; use it as torch's. `state` holds the step, and moments that say where their values are.

    Args:
        groups: Parameter groups, as torch's AdamW takes them.
        tiers: Of the model.
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        tiers: "Publisher",
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True})
        self._tiers = tiers
        tiers.use(self)

    def options(self, parameters: Iterable[nn.Parameter]) -> Options:
        """Count a step for each parameter and return what it is updated by.

        Args:
            parameters: Those that have a gradient.
        """
        wanted = {id(parameter) for parameter in parameters}
        chosen = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) in wanted:
                    state = self.state[parameter]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"], state["exp_avg_sq"] = (
                            self.moment(parameter, "exp_avg"),
                            self.moment(parameter, "exp_avg_sq"),
                        )
                    state["step"] += 1
                    chosen[id(parameter)] = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
                    chosen[id(parameter)]["step"] = int(state["step"])
        return chosen

    def moment(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return the tensor that stands for a moment: of its shape, without memory, and with the place of its values."""
        return self._tiers.moment(parameter, kind)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a closure's loss
        """Update every parameter that has a gradient.

        Raises:
            SaveError: A value could not be read or written; the message names the file.
        """
        assert closure is None, "a closure would run the model in the middle of an update"
        self._tiers.publish()


class Publisher(Protocol):
    """What the optimizer asks of the tiers."""

    def use(self, optimizer: TieredAdamW) -> None:
        """Take the optimizer whose options hold."""

    def publish(self) -> None:
        """Carry a step out, now or when each unit's turn comes."""

    def moment(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return the tensor that stands for a moment."""
