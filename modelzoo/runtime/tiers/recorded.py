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
    host: Mapping[str, int]
    """Bytes in memory by kind."""
    disk: Mapping[str, int]
    traffic: Mapping[str, int]
    """Bytes since the step began, by pair of tiers."""
    stall_s: float
    """Seconds since the step began in which the model waited."""

    @property
    def total(self) -> int:
        """Bytes in memory."""
        return sum(self.host.values())

    def to_json(self, step: int) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "kind": "sample",
            "step": step,
            "time_s": round(self.time_s, 6),
            "event": self.event,
            "unit": self.unit,
            "resident": {"host": _present(self.host), "disk": _present(self.disk)},
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

    @property
    def seconds(self) -> float:
        """From the first forward to the end of the optimizer's step."""
        return self.samples[-1].time_s - self.start_s

    @property
    def peak(self) -> Sample:
        """The fullest moment."""
        return max(self.samples, key=lambda each: each.total)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without its samples."""
        peak = self.peak
        return {
            "kind": "step",
            "step": self.number,
            "seconds": round(self.seconds, 6),
            "stall_s": round(self.samples[-1].stall_s, 6),
            "peak": {"host": _present(peak.host)},
            "peak_time_s": round(peak.time_s, 6),
            "traffic": {"disk>host": dict(self.read_bytes), "host>disk": dict(self.written_bytes)},
        }


def _present(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in counts.items() if count}
