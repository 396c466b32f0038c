"""The folder of the disk tier: a lock against a second run, a sweep after a crash, room checked first."""

import contextlib
import fcntl
import os
from pathlib import Path

from modelzoo.errors import ConfigError, SaveError
from modelzoo.runtime.checkpoints.publish import readable_size

__all__ = ["TierFolder", "sweep_ranks"]

SUFFIX = ".tier"
MARGIN_SHARE = 0.02


class TierFolder:
    """A folder of this rank's files, locked until it is closed.

    Args:
        path: Made if missing; each rank has a folder of its own in it.
        rank: Of this process.
        needed_bytes: What will be written.
        budget_bytes: Most that may be; None for what is free, less a margin.

    Raises:
        ConfigError: Another run uses the folder, it is no folder, or the budget is too small; the message names the smallest.
        SaveError: It cannot be made or written, or there is no room.
    """

    def __init__(self, path: Path, rank: int, needed_bytes: int, budget_bytes: int | None) -> None:
        self.path = path / f"rank-{rank}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a+")
        except OSError as error:
            raise SaveError(f"{self.path}: disk tier: {error.strerror}; give another memory.disk.path") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise ConfigError(
                f"{self.path}: disk tier: process {holder} uses this folder; give another memory.disk.path, or stop it"
            ) from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        try:
            self._sweep()
            self._check_room(needed_bytes, budget_bytes)
        except Exception:
            self._lock.close()
            raise

    def file(self, name: str) -> Path:
        """Return the path of a file of this tier."""
        return self.path / f"{name}{SUFFIX}"

    def close(self) -> None:
        """Remove the files and give the folder back."""
        self._sweep()
        self._lock.close()

    def _sweep(self) -> None:
        """Remove what a run that was killed left."""
        for left in self.path.glob(f"*{SUFFIX}"):
            left.unlink(missing_ok=True)

    def _check_room(self, needed: int, budget: int | None) -> None:
        if budget is not None and needed > budget:
            raise ConfigError(
                f"memory.disk.budget={readable_size(budget)} is too small for this model: expected at least "
                f"{readable_size(needed)} ({needed} bytes)"
            )
        state = os.statvfs(self.path)
        free = int(state.f_bavail * state.f_frsize * (1 - MARGIN_SHARE))
        if needed > free:
            raise SaveError(
                f"{self.path}: disk tier: needs {readable_size(needed)}, found {readable_size(free)} free; free some or give "
                "another memory.disk.path"
            )


def sweep_ranks(path: Path, world_size: int) -> None:
    """Remove what ranks that this run does not have left behind when they were killed; those of a run that is alive stay.

    Args:
        path: The folder of all ranks.
        world_size: Of this run.
    """
    for folder in path.glob("rank-*"):
        rank = folder.name.removeprefix("rank-")
        if rank.isdecimal() and int(rank) >= world_size and any(folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(ConfigError):  # in use
                TierFolder(path, int(rank), 0, None).close()
