"""A progress that also tells trackers: what one of them does wrong is a warning, and the run goes on without it."""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from modelzoo.config import RunSettings
from modelzoo.training.progress.progress import Progress, StepReport

__all__ = ["TrackedProgress", "Tracker", "track"]

log = logging.getLogger(__name__)

Open = Callable[[int], "Tracker"]


class Tracker(Protocol):
    """A service that keeps numbers."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep values of a step.

        Args:
            values: By name, as train/loss and eval/accuracy.
            step: Optimizer steps taken.
        """
        ...

    def close(self) -> None:
        """Hear that the run is over, for good or bad."""
        ...


def track(progress: Progress, settings: RunSettings, run_folder: Path) -> Progress:
    """Return a progress that tells the trackers of the settings too; the progress itself where there are none.

    Args:
        progress: Shown to the user.
        settings: Of the run.
        run_folder: Whose name is that of the tracked run; a resumed run goes on in the same one.
    """
    names = settings.output.trackers
    if not names:
        return progress
    return TrackedProgress(progress, {name: _opener(name, settings, run_folder) for name in names})


def _opener(name: str, settings: RunSettings, run_folder: Path) -> Open:
    """Return what starts a tracker at a step; its package is imported only then."""

    def open_at(step: int) -> Tracker:
        module = importlib.import_module(f"modelzoo.training.progress.trackers.to_{name}")
        opened: Tracker = module.start(run_folder, settings.model_dump(mode="json"), step)
        return opened

    return open_at


class TrackedProgress:
    """Hears of a run, shows it as another progress does, and tells trackers; they start with the first numbers.

    Args:
        shown: What the user sees.
        openers: By name, what starts a tracker at a step.
    """

    def __init__(self, shown: Progress, openers: Mapping[str, Open]) -> None:
        self._shown = shown
        self._openers = dict(openers)
        self._open: dict[str, Tracker] = {}

    def note(self, text: str) -> None:
        """Show it."""
        self._shown.note(text)

    def step(self, report: StepReport) -> None:
        """Show and track a step."""
        self._shown.step(report)
        values = {
            "train/loss": report.loss,
            "train/lr": report.lr,
            "train/grad_norm": report.grad_norm,
            "train/epoch": report.epoch,
            "train/tokens": float(report.tokens),
            "speed/tokens_per_s": report.tokens_per_s,
            "speed/samples_per_s": report.samples_per_s,
            "speed/wait_share": report.wait_share,
            "memory/bytes": float(report.memory_bytes),
        }
        self._tell(values, report.step)

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Show and track an evaluation."""
        self._shown.evaluated(step, values, is_best=is_best, seconds=seconds)
        self._tell({**{f"eval/{name}": value for name, value in values.items()}, "eval/seconds": seconds}, step)

    def close(self) -> None:
        """End all trackers, and the shown progress."""
        for name in list(self._open):
            self._try(name, lambda tracker: tracker.close())
        self._open.clear()
        self._shown.close()

    def _tell(self, values: Mapping[str, float], step: int) -> None:
        for name in self._started(step):
            self._try(name, lambda tracker: tracker.log(values, step))

    def _started(self, step: int) -> Sequence[str]:
        """Start what is not started yet, and return the trackers that work."""
        for name, start in list(self._openers.items()):
            del self._openers[name]
            try:
                self._open[name] = start(step)
            except ImportError as error:
                log.warning("output.trackers: %s is not used: %s (pip install %s)", name, error, name)
            except Exception as error:  # a service that cannot be reached is never worth a run
                log.warning("output.trackers: %s is not used: %s: %s", name, type(error).__name__, error)
        return list(self._open)

    def _try(self, name: str, action: Callable[[Any], None]) -> None:
        """Do something with a tracker; one that fails is let go with one warning."""
        try:
            action(self._open[name])
        except Exception as error:
            del self._open[name]
            log.warning("output.trackers: %s failed and is not told any more: %s: %s", name, type(error).__name__, error)
