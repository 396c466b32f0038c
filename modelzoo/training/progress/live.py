"""One live line on a terminal: bar, loss, rate, speed, memory, time to the end; events scroll above it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from modelzoo.training.progress.progress import StepReport, evaluation_text, time_text

__all__ = ["LiveProgress"]

log = logging.getLogger(__name__)

_BAR = 10
_DROPPED = ("all", "samples", "wait", "memory", "lr", "tokens")
"""Facts that a narrow terminal does without, the first of them first."""


def facts_text(report: StepReport, width: int) -> str:
    """Return what stands right of the bar: as many facts as leave room for the bar itself.

    Args:
        report: Of the step.
        width: Of the terminal, in characters.
    """
    facts = {
        "loss": f"loss {report.loss:.3f}",
        "lr": f"lr {report.lr:.1e}",
        "tokens": f"{report.tokens_per_s:,.0f} tok/s",
        "samples": f"{report.samples_per_s:.1f}/s",
        "wait": f"wait {report.wait_share:.0%}",
        "memory": f"{report.memory_bytes / 2**30:.1f} GiB",
        "eta": f"ETA {time_text(report.eta_s)}",
    }
    suffix = " (all)"  # the whole run, evaluations included
    room = width - len(f"epoch {report.epoch:.2f}  {report.total_steps}/{report.total_steps} ") - 1 - _BAR
    for name in _DROPPED:
        if len("  ".join(facts.values()) + suffix) <= room:
            break
        suffix = ""
        facts.pop(name, None)
    return "  ".join(facts.values()) + suffix


class LiveProgress:
    """Shows the run on a terminal. The line goes away while something is logged, whoever writes the log and how.

    Args:
        console: Where to; the process's stdout by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]:.2f}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console or Console(),
            transient=True,
        )
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        """Log a line."""
        with self._cleared():
            log.info("%s", text)

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        facts = facts_text(report, self._bar.console.width)
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("", total=report.total_steps, epoch=report.epoch, facts=facts)
        self._bar.update(self._task, completed=report.step, epoch=report.epoch, facts=facts)

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Log the metrics."""
        with self._cleared():
            log.info("%s", evaluation_text(step, values, is_best=is_best, seconds=seconds))

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        self._bar.stop()
        try:
            yield
        finally:
            if self._task is not None and not self._bar.finished:
                self._bar.start()

    def close(self) -> None:
        """Remove the line."""
        self._bar.stop()
