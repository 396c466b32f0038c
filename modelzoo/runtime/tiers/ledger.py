"""What the tiers hold in memory now, by kind, and the most they have held: to be compared with what the placement promised."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from modelzoo.runtime.tiers.unit import Unit
from modelzoo.sharded import held

__all__ = ["Ledger", "Resident"]


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes in memory on this rank, without what `fully_shard` holds: units that are put together, gradients on their way."""

    slots: int
    scratch: int
    parameters: int
    """Of units whose home is memory."""
    moments: int
    gradients: int
    inputs: int = 0
    """Buffers of blocks' inputs on their way to the disk and back."""

    @property
    def total(self) -> int:
        """Of all."""
        return self.slots + self.scratch + self.parameters + self.moments + self.gradients + self.inputs

    def to_json(self) -> dict[str, int]:
        """Return it as JSON values."""
        return asdict(self)


class Ledger:
    """Counts what units hold.

    Args:
        units: Of a model.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self.peak = Resident(0, 0, 0, 0, 0)

    def count(self, *, slots: int, scratch: int, inputs: int = 0) -> Resident:
        """Return what there is now, and remember it where it is the most so far.

        Args:
            slots: Bytes of the slots.
            scratch: Bytes of the update's buffers.
            inputs: Bytes of the buffers of blocks' inputs.
        """
        places = [place for unit in self._units for place in unit.places]
        gradients = [place.parameter.grad for place in places if place.parameter.grad is not None]
        found = Resident(
            slots=slots,
            scratch=scratch,
            parameters=sum(held(place.parameter).untyped_storage().nbytes() for place in places),
            moments=sum(unit.memory_bytes for unit in self._units),
            gradients=sum(held(gradient).nbytes for gradient in gradients),
            inputs=inputs,
        )
        if found.total > self.peak.total:
            self.peak = found
        return found
