"""A run in one row: its state, how far it is, and how good it became; and all runs below a folder."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from modelzoo.report.run_files import RunFiles, is_run, numbers, read_run

__all__ = ["RunSummary", "State", "find_runs", "state_of", "summarize"]

State = Literal["finished", "stopped", "running", "failed"]
SKIPPED = {"checkpoints", "final", "node_modules", "__pycache__"}
DEEPEST = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What `modelzoo runs` shows of a run."""

    folder: str
    name: str
    recipe: str
    model: str
    state: State
    step: int
    total_steps: int | None
    metric: str
    best: float | None
    """Best value of the metric; None without an evaluation."""
    best_step: int | None
    loss: float | None
    """Training loss of the last step."""
    seconds: float
    """Time in the loop."""
    started: str
    """UTC, ISO 8601."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def state_of(run: RunFiles) -> State:
    """Return what became of a run: finished, stopped and to be resumed, running now, or failed.

    A run holds a lock on its folder, which goes with its processes however they end.
    """
    if not run.is_ending and _is_locked(run.folder / "run.lock"):
        return "running"
    ending = run.result.get("stopped")
    if ending == "finished":
        return "finished"
    return "stopped" if ending in ("interrupted", "preempted") else "failed"


def summarize(run: RunFiles) -> RunSummary:
    """Return a run in one row."""
    best, best_step = _best(run)
    return RunSummary(
        folder=str(run.folder),
        name=run.name,
        recipe=str(run.settings.get("recipe", "")),
        model=str(run.section("model").get("name", "")),
        state=state_of(run),
        step=run.step,
        total_steps=run.total_steps,
        metric=run.metric,
        best=best,
        best_step=best_step,
        loss=numbers(run.steps[-1]).get("loss") if run.steps else None,
        seconds=run.seconds,
        started=datetime.fromtimestamp((run.folder / "resolved.yaml").stat().st_mtime, UTC).isoformat(timespec="seconds"),
    )


def find_runs(folder: Path) -> Iterator[RunFiles]:
    """Give the runs in a folder and in the folders below it, by name; a run's own folders are not searched.

    Args:
        folder: Where to look; itself may be a run.
    """
    if is_run(folder):
        yield read_run(folder)
        return
    for path, names, _ in os.walk(folder):
        inner = Path(path)
        depth = len(inner.relative_to(folder).parts)
        found = sorted(name for name in names if is_run(inner / name))
        for name in found:
            yield read_run(inner / name)
        names[:] = sorted(
            name for name in names if depth < DEEPEST and name not in SKIPPED and name not in found and not name.startswith(".")
        )


def _best(run: RunFiles) -> tuple[float | None, int | None]:
    """Return the best value and its step: the result's, or for a run without one what the evaluations say so far."""
    ended = numbers(run.result)
    if "best_step" in ended and "best_metric" in ended:
        return ended["best_metric"], int(ended["best_step"])
    found = [
        (values[run.metric], record["step"])
        for record in run.evaluations
        if run.metric in (values := numbers(record["evaluation"]))
    ]
    if not found:
        return None, None
    return min(found) if run.metric in ("loss", "perplexity") else max(found, key=lambda item: (item[0], -item[1]))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
