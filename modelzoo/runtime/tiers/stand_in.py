"""What stands in a model or an optimizer for values that are in a lower tier."""

from concurrent.futures import Future
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers.staging import Staging
from modelzoo.runtime.tiers.unit import Kind, Unit
from modelzoo.sharded import held, is_sharded

__all__ = ["AwayGradient", "AwayValues", "Values", "stand_in"]


class Values(Protocol):
    """Reads and writes a parameter's values of a kind; the tiers do."""

    def read(self, unit: Unit, number: int, kind: Kind) -> Tensor:
        """Return them, in memory of their own."""

    def write(self, unit: Unit, number: int, kind: Kind, values: Tensor) -> None:
        """Replace them."""


class AwayValues:
    """The place of a parameter's values of one kind; see `modelzoo.sharded.Away`.

    Args:
        tiers: Where they are.
        unit: Whose they are.
        number: Of the parameter in the unit.
        kind: Which values.
    """

    def __init__(self, tiers: Values, unit: Unit, number: int, kind: Kind) -> None:
        self._tiers, self._unit, self._number, self._kind = tiers, unit, number, kind

    def read(self) -> Tensor:
        """Return the values."""
        return self._tiers.read(self._unit, self._number, self._kind)

    def write(self, values: Tensor) -> None:
        """Replace the values."""
        self._tiers.write(self._unit, self._number, self._kind, values)


class AwayGradient:
    """A gradient that is on disk: its norm is known from when it was put there, and a factor is applied when it is used.

    Args:
        unit: Whose it is.
        number: Of the parameter in the unit.
    """

    def __init__(self, unit: Unit, number: int) -> None:
        self._unit, self._number = unit, number
        self._norm: Tensor = torch.zeros(())
        self._moved: Future[None] | None = None

    @property
    def norm(self) -> Tensor:
        """() float32, of this rank's part, before any factor; waits until it is there."""
        if self._moved is not None:
            self._moved.result()
        return self._norm

    def measure(self, values: Tensor) -> None:
        """Take the norm of values."""
        self._norm = torch._foreach_norm([values])[0] if values.numel() else values.new_zeros(())

    def add(self, values: Tensor, staging: Staging) -> None:
        """Add a micro-batch's gradient to what is there.

        Args:
            values: Flat, may be changed.
            staging: Through which it goes to its home.
        """
        unit, place, region = self._unit, self._unit.places[self._number], self._unit.region("gradients")
        adds = self._number in unit.stored_gradients
        if unit.link.is_apart:
            before = self._moved

            def work(values: Tensor) -> None:
                if before is not None:
                    before.result()
                staging.carry(region, place.start, values, adds=adds)
                self.measure(values)

            self._moved = staging.send(values, work)
        else:
            (staging.add if adds else staging.put)(region, place.start, values)
            self.measure(values)
        unit.stored_gradients.add(self._number)
        unit.gradient_factors[self._number] = 1.0

    def scale(self, factor: float) -> None:
        """Multiply it, when it is used.

        Raises:
            ConfigError: It was used in the backward already.
        """
        if self._number not in self._unit.stored_gradients:
            raise ConfigError(
                "memory.optimizer_update=in_backward has used the gradients before their norm was known, so they cannot be "
                "clipped; leave clipping out, or use deferred"
            )
        self._unit.gradient_factors[self._number] *= factor


def stand_in(parameter: nn.Parameter, away: AwayValues) -> Tensor:
    """Return a tensor of the parameter's shape and layout that has no memory, only the place of its values."""
    tensor = torch.empty(held(parameter).shape, device="meta")
    if is_sharded(parameter):
        tensor = DTensor.from_local(
            tensor,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    held(tensor).away = away  # type: ignore[attr-defined]  # read by modelzoo.sharded
    return tensor
