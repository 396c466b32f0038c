"""What is recorded of a step: what each tier held at its moments, and what was moved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RecordedStep", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment."""

    time_s: float
    """Since the first recorded step began."""
    event: str
    """forward, loss, backward, update (before the optimizer's step) or updated (after it)."""
    unit: str
    """The block that begins; empty for the others."""
    resident: Mapping[str, Mapping[str, int]]
    """Bytes by tier and kind; first the tier that the model computes in: "device", or "host" where there is no other."""
    traffic: Mapping[str, int]
    """Bytes since the step began, by pair of tiers."""
    stall_s: float
    """Seconds since the step began in which the model waited."""

    @property
    def here(self) -> Mapping[str, int]:
        """Bytes by kind in the tier that the model computes in."""
        return next(iter(self.resident.values()))

    @property
    def total(self) -> int:
        """Bytes in that tier."""
        return sum(self.here.values())

    def to_json(self, step: int) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "kind": "sample",
            "step": step,
            "time_s": round(self.time_s, 6),
            "event": self.event,
            "unit": self.unit,
            "resident": {tier: _present(counts) for tier, counts in self.resident.items()},
            "traffic": dict(self.traffic),
            "stall_s": round(self.stall_s, 6),
        }


@dataclass(slots=True)
class RecordedStep:
    """A step that was recorded."""

    number: int
    start_s: float
    samples: list[Sample] = field(default_factory=list)
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """From the disk, by kind of value."""
    written_bytes: Mapping[str, int] = field(default_factory=dict)
    bus_bytes: Mapping[str, int] = field(default_factory=dict)
    """Between an accelerator and the host, by pair of tiers."""

    @property
    def seconds(self) -> float:
        """From the first forward to the end of the optimizer's step."""
        return self.samples[-1].time_s - self.start_s

    @property
    def peak(self) -> Sample:
        """The fullest moment of the tier that the model computes in."""
        return max(self.samples, key=lambda each: each.total)

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes by pair of tiers."""
        return {"disk>host": sum(self.read_bytes.values()), "host>disk": sum(self.written_bytes.values()), **self.bus_bytes}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without its samples."""
        peak = self.peak
        return {
            "kind": "step",
            "step": self.number,
            "seconds": round(self.seconds, 6),
            "stall_s": round(self.samples[-1].stall_s, 6),
            "peak": {tier: _present(counts) for tier, counts in peak.resident.items() if tier != "disk"},
            "peak_time_s": round(peak.time_s, 6),
            "traffic": {
                "disk>host": dict(self.read_bytes),
                "host>disk": dict(self.written_bytes),
                **{pair: {"values": count} for pair, count in self.bus_bytes.items()},
            },
        }


def _present(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in counts.items() if count}
