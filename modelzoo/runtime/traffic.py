"""What a run's ranks exchanged and how long it took: counted where it happens, read by the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Traffic"]


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

    @contextmanager
    def timed(self, kind: str, sent_bytes: int) -> Iterator[None]:
        """Count an exchange that runs inside the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(kind, sent_bytes, time.perf_counter() - started)

    def add(self, kind: str, sent_bytes: int, seconds: float) -> None:
        """Count an exchange."""
        self.sent_bytes[kind] = self.sent_bytes.get(kind, 0) + sent_bytes
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.calls[kind] = self.calls.get(kind, 0) + 1

    def clear(self) -> None:
        """Start again at nothing."""
        self.sent_bytes.clear()
        self.seconds.clear()
        self.calls.clear()
