"""AdamW whose moments, and whose parameters and gradients if need be, live in the tiers; the numbers are those of torch's own.

Torch's fused kernel runs on pieces of 512 Ki values, which stay in the cache; while one is computed the next one is read and the
last one is written.
Cut at multiples of 64 values within one parameter, the results are those of the whole tensor to the last bit.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.runtime.fused_adamw import fused_adamw
from modelzoo.runtime.tiers.pieces import UPDATE_PIECE, WRITTEN, Piece, Scratch, Way
from modelzoo.runtime.tiers.unit import Unit

__all__ = ["Options", "Publisher", "TieredAdamW", "update_unit"]

Options = Mapping[int, Mapping[str, Any]]
"""Parameter's id -> lr, betas, eps, weight_decay and the number of the step, of those that are updated."""


@torch.no_grad()
def update_unit(
    unit: Unit,
    options: Options,
    parameters: Tensor | None,
    gradients: Mapping[int, Tensor],
    scratch: Scratch,
    lane: Executor | None = None,
    after: Any = None,
) -> None:
    """Update a unit's values and moments, where its regions are: on the device if all of them are there, else on the host.

    Args:
        unit: Its moments are read from and written to their regions.
        options: As published; parameters that are not in it stay as they are.
        parameters: The unit's parameter region, changed in place; None for parameters where torch has them.
        gradients: By place number: flat values in memory, which may be changed; those that are missing are in the region.
        scratch: Of this thread.
        lane: Threads that read the next piece and write the last one meanwhile; None does one after the other.
        after: Event of the device from which on the gradients in its memory are there.
    """
    is_on_device = unit.link.is_apart and not unit.is_mixed
    size = max((place.numel for place in unit.places), default=1) if is_on_device else UPDATE_PIECE
    pieces = [
        Piece(number, low, min(low + size, place.numel))
        for number, place in enumerate(unit.places)
        if id(place.parameter) in options and (number in gradients or number in unit.stored_gradients)
        for low in range(0, place.numel, max(size, 1))
    ]
    way = Way(unit, parameters, gradients, scratch, lane, after)
    with unit.link.beside(after) if is_on_device else nullcontext():
        for turn, piece in enumerate(pieces):
            values = way.take(turn, piece, pieces[turn + 1] if turn + 1 < len(pieces) else None)
            gradient = values["gradients"]
            if unit.gradient_factors.get(piece.number, 1.0) != 1.0:
                gradient.mul_(unit.gradient_factors[piece.number])
            chosen = options[id(unit.places[piece.number].parameter)]
            value, first, second = (values[kind] for kind in WRITTEN)
            step = torch.tensor(float(chosen["step"] - 1), device=value.device)
            fused_adamw(value, gradient, first, second, step, chosen)
            way.give_back(turn, piece, values)
        way.settle()
    unit.stored_gradients.clear()
    unit.gradient_factors.clear()


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
