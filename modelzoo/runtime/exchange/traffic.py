"""What a run's ranks exchanged and how long it took: counted where it happens, read by the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from modelzoo.runtime.lost import in_collective

__all__ = ["NAMES", "StepClock", "Traffic"]

NAMES = {
    "gather": "an all-gather of parameters",
    "reduce": "a reduce-scatter of gradients",
    "replicate": "an all-reduce of gradients between groups",
    "tensor": "an exchange of activations on the tensor axis",
}
"""What an exchange of each kind is called when it fails."""


@dataclass(slots=True)
class Traffic:
    """Bytes that this rank sent, and seconds that it waited for them, by kind of exchange.

    A ring is what is counted: a gather or a scatter of n parts moves (n - 1) / n of the whole, a sum of whole tensors twice that.
    Kinds: "gather" (parameters put together), "reduce" (gradients added up), "replicate" (gradients added up between groups),
    "tensor" (activations of a tensor axis).
    """

    sent_bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    is_counting: bool = True

    @contextmanager
    def timed(self, kind: str, sent_bytes: int) -> Iterator[None]:
        """Count an exchange that runs inside the block."""
        started = time.perf_counter()
        try:
            with in_collective(NAMES[kind]):
                yield
        finally:
            self.add(kind, sent_bytes, time.perf_counter() - started)

    def add(self, kind: str, sent_bytes: int, seconds: float) -> None:
        """Count an exchange."""
        if not self.is_counting:
            return
        self.sent_bytes[kind] = self.sent_bytes.get(kind, 0) + sent_bytes
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.calls[kind] = self.calls.get(kind, 0) + 1

    def waited(self, kind: str, seconds: float) -> None:
        """Count time spent on an exchange that was counted when it began."""
        if self.is_counting:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside the block: an evaluation is no part of a step."""
        before, self.is_counting = self.is_counting, False
        try:
            yield
        finally:
            self.is_counting = before

    def clear(self) -> None:
        """Start again at nothing."""
        self.sent_bytes.clear()
        self.seconds.clear()
        self.calls.clear()


@dataclass(slots=True)
class StepClock:
    """Where the time of training steps went on this rank, by phase: "data", "compute" (with its exchanges), "optimizer"."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - started)

    def add(self, phase: str, seconds: float) -> None:
        """Count time."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
