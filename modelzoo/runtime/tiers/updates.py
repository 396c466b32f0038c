"""When each unit is updated: at the optimizer's step, in the backward, or when its next forward comes near."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal

from torch import Tensor, nn

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.adamw import Options, TieredAdamW
from modelzoo.runtime.tiers.ring import Gradients, Ring, filled
from modelzoo.runtime.tiers.staging import Staging
from modelzoo.runtime.tiers.stand_in import AwayGradient
from modelzoo.runtime.tiers.unit import Unit
from modelzoo.runtime.tiers.worker import WORKERS
from modelzoo.sharded import local_values

__all__ = ["Updates", "WhenUpdated"]

WhenUpdated = Literal["step", "in_backward", "deferred"]


class Updates:
    """Takes gradients as they come and carries updates out.

    Args:
        units: Of a model.
        ring: Through which those that are streamed pass.
        when: Updates are carried out.
    """

    def __init__(self, units: Sequence[Unit], ring: Ring, when: WhenUpdated) -> None:
        self._units, self._ring, self.when = units, ring, when
        self.staging = Staging(ring.back, ring.link, room=4 * ring.slots.elements)
        self.optimizer: TieredAdamW | None = None
        self._running: list[tuple[Unit, Future[None]]] = []
        self._arrived: dict[int, int] = {}
        self._updated: set[int] = set()

    def take_gradient(self, unit: Unit, number: int, parameter: nn.Parameter) -> None:
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
            away.measure(local_values(gradient))
            parameter.away_gradient = away  # type: ignore[attr-defined]  # read by clip_grad_norm
            self._arrived[key] = self._arrived.get(key, 0) + 1
            if self._arrived[key] == sum(place.parameter.requires_grad for place in unit.places):
                self._update_now(unit)
            return
        away = getattr(parameter, "away_gradient", None) or AwayGradient(unit, number)
        away.add(local_values(gradient).reshape(-1), self.staging)
        parameter.away_gradient = away  # type: ignore[attr-defined]  # read by clip_grad_norm
        parameter.grad = None

    def publish(self) -> None:
        """Carry a step out: now, or when each unit's turn comes; in the backward it was done already.

        Raises:
            SaveError: A value could not be read or written.
        """
        self._ring.worker.check()
        self.staging.settle()
        for unit in self._units:
            if self.when == "in_backward":
                if self._arrived.get(id(unit)):
                    self._update_now(unit)  # parameters that had no gradient are not waited for
                for place in unit.places:
                    place.parameter.__dict__.pop("away_gradient", None)
            else:
                self._publish(unit)
        self._updated.clear()
        # who uses a streamed one next waits for its slot
        self._wait(lambda unit: not unit.is_streamed)

    def flush(self) -> None:
        """Carry out every update that is still pending: before anything but a forward looks at the values.

        Raises:
            SaveError: A value could not be read or written.
        """
        self.staging.settle()
        for unit in self._units:
            if id(unit) in self._ring.pending:
                slot = self._ring.start(unit)
                if not unit.is_block:
                    self._ring.worker.wait(filled(slot))
                    self._ring.slots.forget(unit)
        self._ring.settle()
        self._wait()

    def _publish(self, unit: Unit) -> None:
        if id(unit) in self._ring.pending:  # it was in no forward since the last step
            self._ring.worker.wait(filled(self._ring.start(unit)))
        gradients = self._gradients_in_memory(unit)
        options = self._options(unit, gradients)
        if not options:
            return
        for number in unit.stored_gradients:
            unit.places[number].parameter.__dict__.pop("away_gradient", None)
        if self.when == "deferred" and unit.is_streamed:
            self._ring.slots.forget(unit)
            self._ring.pending[id(unit)] = (options, gradients, self._ring.link.mark())
        else:
            self._apply(unit, options, gradients)

    def _update_now(self, unit: Unit) -> None:
        """Update a unit whose gradients are all there, in the backward; few at a time, for their gradients take memory."""
        self._arrived[id(unit)] = 0
        self._updated.add(id(unit))
        gradients = self._gradients_in_memory(unit)
        while len(self._running) >= WORKERS:
            self._ring.back.wait(self._running.pop(0)[1])
        self._apply(unit, self._options(unit, gradients), gradients)
        for place in unit.places:
            place.parameter.grad = None

    def _apply(self, unit: Unit, options: Options, gradients: Gradients) -> None:
        """Let a unit be updated."""
        self._running.append((unit, self._ring.update(unit, (options, gradients, self._ring.link.mark()))))
        slot = self._ring.slots.find(unit)
        if slot is not None and not unit.is_block and not slot.users:
            self._ring.worker.wait(filled(slot))
            self._ring.slots.forget(unit)

    def _options(self, unit: Unit, gradients: Gradients) -> Options:
        if self.optimizer is None:
            raise ConfigError("a model with tiers needs their optimizer; build it with modelzoo.runtime.tiers.TieredAdamW")
        numbers = {*gradients, *unit.stored_gradients}
        return self.optimizer.options(unit.places[number].parameter for number in sorted(numbers))

    def _gradients_in_memory(self, unit: Unit) -> dict[int, Tensor]:
        found = {}
        for number, place in enumerate(unit.places):
            if place.parameter.grad is not None:
                found[number] = local_values(place.parameter.grad).reshape(-1)
        return found

    def _wait(self, chosen: Callable[[Unit], bool] = lambda _: True) -> None:
        running = self._running
        self._running = [(unit, update) for unit, update in running if not chosen(unit) and not update.done()]
        for unit, update in running:
            if chosen(unit):
                self._ring.back.wait(update)
