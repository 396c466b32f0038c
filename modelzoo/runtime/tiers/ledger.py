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
    host: int = 0
    """Everything in the host's memory below an accelerator: homes, and all buffers; the rest is then in the device's."""

    @property
    def total(self) -> int:
        """Of the memory that the model computes in."""
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
        """What there was when the memory that the model computes in was fullest."""
        self.host_peak = 0
        """The most there was in the host's memory below an accelerator."""

    def count(self, *, slots: int, scratch: int, inputs: int = 0, is_apart: bool = False) -> Resident:
        """Return what there is now, and remember it where it is the most so far.

        Args:
            slots: Bytes of the slots.
            scratch: Bytes of the update's buffers.
            inputs: Bytes of the buffers of blocks' inputs.
            is_apart: Whether buffers are in the host's memory below an accelerator.
        """
        places = [place for unit in self._units for place in unit.places]
        gradients = [place.parameter.grad for place in places if place.parameter.grad is not None]
        found = Resident(
            slots=slots,
            scratch=0 if is_apart else scratch,
            parameters=sum(
                held(place.parameter).untyped_storage().nbytes()
                for unit in self._units
                for place in unit.places
                if not unit.is_streamed
            ),
            moments=sum(unit.region_bytes("memory") for unit in self._units),
            gradients=sum(held(gradient).nbytes for gradient in gradients),
            inputs=0 if is_apart else inputs,
            host=sum(unit.region_bytes("host") for unit in self._units) + (scratch + inputs if is_apart else 0),
        )
        self.host_peak = max(self.host_peak, found.host)
        if found.total > self.peak.total:
            self.peak = found
        return found
