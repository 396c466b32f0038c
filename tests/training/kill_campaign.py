"""Runs that are killed with signal 9 at random moments, over and over, and what is left each time."""

import multiprocessing
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from distributed import FROZEN, PRELOADED, enter, free_port
from tiny_runs import settings_for

from modelzoo.errors import CheckpointError
from modelzoo.report import read_records
from modelzoo.runtime import find_latest, read_manifest
from modelzoo.runtime.checkpoints.reading import StateReader
from modelzoo.training import SilentProgress, resume, train

STEPS = 48
TIMEOUT_S = 20


@dataclass
class Campaign:
    """What came of some kills."""

    kills: int = 0
    resumable: int = 0
    """Kills after which the newest checkpoint was complete, or the run had not come to its first."""
    exact: int = 0
    """Kills after which the newest checkpoint was bit for bit that of a run that was never killed."""
    lost: int = 0
    """Most steps that had been taken and were not in the newest checkpoint."""
    runs: int = 0
    """Runs that came to their end in spite of it, equal to one that was never killed."""
    slowest_survivor_s: float = 0.0
    """Longest time that a rank lived on after another was killed."""
    problems: list[str] = field(default_factory=list)


class Steps(SilentProgress):
    """Tells the parent process which step was taken; its checkpoint is not yet written then."""

    def __init__(self, taken: Any) -> None:
        self._taken = taken

    def step(self, report: Any) -> None:
        self._taken.value = report.step


def settings_of(folder: Path, **changes: Any) -> Any:
    changes = {"checkpoint__keep_last": 3, "evaluation__every": 12, "parallel__timeout_s": float(TIMEOUT_S), **changes}
    return settings_for(folder, checkpoint__every=1, train__epochs=8.0, **changes)


def newest_run(folder: Path) -> Path | None:
    """The run that was begun last; one that was killed before its settings were written is none."""
    return max((path.parent for path in folder.glob("runs/tiny-*/resolved.yaml")), default=None)


def live(folder: str, taken: Any, changes: dict[str, Any]) -> None:
    """Begin the run, or go on with it."""
    torch.set_num_threads(1)
    run = newest_run(Path(folder))
    if run is None:
        train(settings_of(Path(folder), **changes), progress=Steps(taken))
    else:
        resume(run, progress=Steps(taken))


def state_of(path: Path) -> dict[str, bytes]:
    """Return all tensors of a checkpoint, whole, generators included."""
    reader = StateReader(path, read_manifest(path))
    return {
        f"{kind}/{name}": reader.read(kind, name).numpy().tobytes()
        for kind in ("model", "optimizer", "random")
        for name in reader.specs(kind)
    }


def timeless(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in read_records(run / "metrics.jsonl")]


class Killer:
    """Lets runs live and kills them.

    Args:
        folder: Where everything is.
        ranks: Processes of a run.
        seed: Of the moments.
        changes: Settings, as those of `settings_for`.
    """

    def __init__(self, folder: Path, ranks: int = 1, seed: int = 0, **changes: Any) -> None:
        self.folder, self.ranks, self.changes = folder, ranks, changes
        self.random = random.Random(seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.found = Campaign()
        settings_of(folder)
        started = time.monotonic()
        self._live({"checkpoint__keep_last": STEPS, "output__name": "whole"}, None)
        self.life_s = time.monotonic() - started
        self.whole = folder / "runs" / "whole-001"

    def run(self, kills: int, lives_a_run: int = 20) -> Campaign:
        """Kill `kills` times; a run that is finished is compared with the whole one, and the next is begun."""
        while self.found.kills < kills and not self.found.problems:
            if self._live(self.changes, self.random.uniform(0, 2 * self.life_s / lives_a_run)):
                self._compare_end()
            else:
                self.found.kills += 1
                self._compare_newest()
        while not self.found.problems and newest_run(self.folder) is not None:
            if self._live(self.changes, None):
                self._compare_end()
        return self.found

    def _live(self, changes: dict[str, Any], training_s: float | None) -> bool:
        """Let a life go on for some time of training, or a seventh of them of starting; return whether it ended by itself."""
        taken = self.context.Value("i", 0)
        self.taken = taken
        port = free_port()
        processes = [
            self.context.Process(
                target=enter, args=(FROZEN, live, rank, self.ranks, port, str(self.folder), (str(self.folder), taken, changes))
            )
            if self.ranks > 1
            else self.context.Process(target=live, args=(str(self.folder), taken, changes))
            for rank in range(self.ranks)
        ]
        for process in processes:
            process.start()
        if training_s is None:
            self._join(processes, 600)
            assert all(process.exitcode == 0 for process in processes), [process.exitcode for process in processes]
            return True
        if self.random.random() < 1 / 7:
            time.sleep(training_s)
        else:
            end = time.monotonic() + 60
            while not taken.value and any(process.is_alive() for process in processes) and time.monotonic() < end:
                time.sleep(0.002)
            self._join(processes, training_s)
        if all(process.exitcode == 0 for process in processes):
            return True
        self._kill(processes)
        return False

    def _kill(self, processes: list[Any]) -> None:
        """Kill one of the ranks, or all; those that are left must end by themselves."""
        victims = self.random.choice([[process] for process in processes] + [processes])
        for victim in victims:
            victim.kill()
        started = time.monotonic()
        self._join(processes, TIMEOUT_S + 5)
        self.found.slowest_survivor_s = max(self.found.slowest_survivor_s, time.monotonic() - started)
        for rank, process in enumerate(processes):
            if process.is_alive():
                self.found.problems.append(f"rank {rank} still ran {TIMEOUT_S + 5} s after another was killed")
                process.kill()
                process.join()
            elif process.exitcode == 0 and len(victims) == 1 and process not in victims and victims[0].exitcode != 0:
                self.found.problems.append(f"rank {rank} ended well though another was killed")

    def _join(self, processes: list[Any], seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))

    def _compare_newest(self) -> None:
        """Compare what a kill has left with the run that was never killed."""
        run, found = newest_run(self.folder), None
        try:
            found = find_latest(run / "checkpoints") if run else None
        except CheckpointError as error:
            self.found.problems.append(str(error))
            return
        saved = found.manifest.step if found else 0
        if found is not None and found.skipped:
            self.found.problems.append(f"skipped {found.skipped}")
            return
        self.found.resumable += 1
        self.found.lost = max(self.found.lost, self.taken.value - saved)
        if found is None or state_of(found.path) == state_of(self.whole / "checkpoints" / found.path.name):
            self.found.exact += 1
        else:
            self.found.problems.append(f"{found.path} is not that of the whole run")

    def _compare_end(self) -> None:
        run = newest_run(self.folder)
        assert run is not None
        last = Path("checkpoints") / f"step-{STEPS}"
        if state_of(run / last) != state_of(self.whole / last) or timeless(run) != timeless(self.whole):
            self.found.problems.append(f"{run} ended differently")
        if list((run / "checkpoints").glob(".tmp-*")):
            self.found.problems.append(f"{run} has left temporary folders")
        self.found.runs += 1
        (run / "resolved.yaml").unlink()
