"""A kernel limit on the memory of a process and its children: a control group of its own, version 1 or 2."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Outcome:
    """How a limited process ended."""

    returncode: int
    seconds: float
    output: str
    peak_bytes: int
    """As the kernel counted, page cache included."""

    @property
    def was_killed(self) -> bool:
        """Whether the kernel or the time limit ended it."""
        return self.returncode == -signal.SIGKILL


def run_limited(
    command: Sequence[str], limit_bytes: int, *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command in a memory control group.

    Args:
        command: Words.
        limit_bytes: Of the group; nothing is swapped.
        timeout_s: When it is killed.
        environment: In addition to this process's.

    Raises:
        SystemExit: No control group can be made here; run as root.
    """
    with _group(limit_bytes) as folder:

        def join() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        started = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=join,
            env=os.environ | dict(environment or {}),
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return Outcome(process.returncode, time.monotonic() - started, output, _peak(folder))


@contextmanager
def _group(limit_bytes: int) -> Iterator[Path]:
    parent = ROOT / "memory" if (ROOT / "memory").is_dir() else ROOT
    folder = parent / f"benchmark-{os.getpid()}"
    try:
        folder.mkdir()
        if parent == ROOT:
            (folder / "memory.max").write_text(str(limit_bytes))
            (folder / "memory.swap.max").write_text("0")
        else:
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        raise SystemExit(f"{folder}: no memory control group can be made ({error.strerror}); run as root") from error
    try:
        yield folder
    finally:
        for _ in range(50):
            try:
                folder.rmdir()
                break
            except OSError:  # its last process is still on its way out
                time.sleep(0.1)


def _peak(folder: Path) -> int:
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (folder / name).is_file():
            return int((folder / name).read_text())
    return 0
