"""What a run tells while it goes: an object that hears every step, and two that show it (a live line, or log lines).

Pass your own object with these methods to `train` for a notebook or a test. Only rank 0 has one that speaks.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch

from modelzoo.quantities import time_text

__all__ = [
    "LineProgress",
    "Progress",
    "SilentProgress",
    "StepReport",
    "memory_bytes",
    "metrics_text",
    "time_text",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """A step as it is shown."""

    step: int
    total_steps: int
    epoch: float
    """Passes over the data so far."""
    loss: float
    lr: float
    grad_norm: float
    tokens_per_s: float
    """Real tokens over all ranks, over the last steps."""
    samples_per_s: float
    wait_share: float
    """Share of the time spent waiting for data, 0 to 1."""
    memory_bytes: int
    """In use by this process: on the accelerator if there is one, else resident."""
    eta_s: float
    """Seconds to the end of the whole run, evaluations included."""
    tokens: int = 0
    """Real tokens over all ranks since the beginning of the run."""


class Progress(Protocol):
    """What a run calls, on rank 0."""

    def note(self, text: str) -> None:
        """Say something about the run."""
        ...

    def step(self, report: StepReport) -> None:
        """Hear of a step."""
        ...

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Hear of an evaluation."""
        ...

    def close(self) -> None:
        """Hear that the run is over, for good or bad."""
        ...


class SilentProgress:
    """Says nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def step(self, report: StepReport) -> None:
        """Do nothing."""

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LineProgress:
    """Log lines: each event, and at most one step in `every_s` seconds; the first and the last step always.

    Args:
        every_s: Seconds between two lines about steps.
    """

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._last = float("-inf")

    def note(self, text: str) -> None:
        """Log a line."""
        log.info("%s", text)

    def step(self, report: StepReport) -> None:
        """Log a line if it is time for one."""
        now = time.monotonic()
        if now - self._last < self._every_s and report.step < report.total_steps:
            return
        self._last = now
        log.info("%s", step_text(report))

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Log the metrics."""
        log.info("%s", evaluation_text(step, values, is_best=is_best, seconds=seconds))

    def close(self) -> None:
        """Do nothing."""


def step_text(report: StepReport) -> str:
    """Return a step as one line of key=value."""
    return (
        f"step={report.step}/{report.total_steps} epoch={report.epoch:.2f} loss={report.loss:.4f} lr={report.lr:.2e} "
        f"tokens_s={report.tokens_per_s:.0f} samples_s={report.samples_per_s:.1f} wait={report.wait_share:.0%} "
        f"memory_gib={report.memory_bytes / 2**30:.2f} eta={time_text(report.eta_s)}"
    )


def evaluation_text(step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> str:
    """Return an evaluation as one line."""
    return f"step {step}   eval {metrics_text(values)}   {seconds:.1f} s{'   best' if is_best else ''}"


def metrics_text(values: dict[str, Any]) -> str:
    """Return metrics as `accuracy 0.8123  loss 0.4512`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def memory_bytes(device: torch.device) -> int:
    """Return the memory in use: the peak on the accelerator, else the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
