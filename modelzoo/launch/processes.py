"""Starting the ranks of a run on this machine: one voice, one exit code, and the cause first when something goes wrong.

Each rank is the same command with torchrun's variables in its environment. Ranks get Ctrl-C and SIGTERM from here alone, once
for each time that it is asked, so that all of them finish the step and save. They meet at a port that is open before they start,
so no other program can take it meanwhile.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from modelzoo.launch.board import BOARD_VARIABLE, FolderBoard
from modelzoo.launch.verdict import STOPPED, Ended, verdict

__all__ = ["LISTEN_VARIABLE", "PARENT_VARIABLE", "launch"]

LISTEN_VARIABLE = "MODELZOO_LISTEN_FD"
"""Environment variable with the number of the open socket at which rank 0 lets the others meet."""
PARENT_VARIABLE = "MODELZOO_PARENT"
"""Environment variable with the process that started the ranks; they stop when it is gone."""

COMMAND = (sys.executable, "-m", "modelzoo")
GRACE_S = 5.0
"""Seconds that ranks get, after one failed, to notice it and to say so, before they are ended."""
STOPPING_GRACE_S = 60.0
"""Seconds that ranks get after one has stopped because it was asked to, and has saved."""
POLL_S = 0.05
FORWARDED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,  # the terminal is gone: save and end
    signal.SIGUSR1: signal.SIGTERM,
}
"""What is handed on to the ranks for each signal."""
Hears = Callable[[str, str], None]
MOST_KEPT = 64 * 2**10
"""Bytes of a rank's stderr that are kept for the report."""


@dataclass(slots=True)
class _Rank:
    """A started rank."""

    number: int
    process: subprocess.Popen[bytes]
    errors: bytearray = field(default_factory=bytearray)
    readers: list[threading.Thread] = field(default_factory=list)
    ended_at: float | None = None


def launch(
    arguments: Sequence[str],
    ranks: int,
    *,
    say_error: Callable[[str], None],
    grace_s: float = GRACE_S,
    cores: int | None = None,
    hears: Hears | None = None,
) -> int:
    """Run `modelzoo ARGUMENTS` on `ranks` processes of this machine, wait for them, and return the exit code of the run.

    Rank 0 writes to this process's stdout and stderr, or is heard by `hears`. What the others have to say on stderr is kept and
    shown if they fail.

    Args:
        arguments: What was typed after `modelzoo`.
        ranks: At least 1.
        say_error: Is told why the run failed, the cause first.
        grace_s: Seconds between the first failure and the end of ranks that have not ended by themselves.
        cores: Cores that are shared out; None asks the system.
        hears: Is told each line of rank 0, from threads: "stdout" or "stderr", and the line.

    Returns:
        0; that of the rank that was the cause; 4 when a rank was lost; 75 or 130 when the run was asked to stop.
    """
    with ExitStack() as stack:
        board = FolderBoard(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modelzoo-ranks-"))))
        asked: list[int] = []
        started: list[_Rank] = []
        stack.enter_context(_Forwarding(started, asked))
        stack.callback(_end, started)
        started.extend(_start(arguments, ranks, board.folder, cores, hears))
        for number in asked:  # a signal that came before there was anybody to forward it to
            _send(started, number)
        was_ended = _wait(started, grace_s)
        for rank in started:
            for reader in rank.readers:
                reader.join(timeout=1)
        ended = [
            Ended(rank.number, rank.process.returncode, rank.number in was_ended, bytes(rank.errors).decode(errors="replace"))
            for rank in sorted(started, key=lambda rank: (rank.ended_at or 0, rank.number))
        ]
        code, message = verdict(ended, board, asked)
        if message:
            say_error(message)
        return code


def _start(arguments: Sequence[str], ranks: int, board: Path, cores: int | None, hears: Hears | None) -> list[_Rank]:
    """Start all ranks; rank 0 inherits the socket at which they meet."""
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    started = []
    with socket.socket() as meeting:
        meeting.bind(("127.0.0.1", 0))
        meeting.listen(ranks + 16)
        shared = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(meeting.getsockname()[1]),
            BOARD_VARIABLE: str(board),
            PARENT_VARIABLE: str(os.getpid()),
        }
        threads = {"OMP_NUM_THREADS": str(max(cores // ranks, 1)), **os.environ}
        command = [*COMMAND, *arguments]
        for number in range(ranks):
            own = {"RANK": str(number), "LOCAL_RANK": str(number)}
            if number == 0:
                own[LISTEN_VARIABLE] = str(meeting.fileno())
            process = subprocess.Popen(
                command,
                env={**threads, **shared, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if number else None if hears is None else subprocess.PIPE,
                stderr=subprocess.PIPE if number or hears is not None else None,
                pass_fds=[meeting.fileno()] if number == 0 else [],
                process_group=0,  # a terminal sends Ctrl-C to its whole group; here it comes from the launcher alone
            )
            rank = _Rank(number, process)
            if number:
                _read(rank, _keep, process.stderr, rank.errors)
            elif hears is not None:
                _read(rank, _hear, process.stdout, partial(hears, "stdout"))
                _read(rank, _hear, process.stderr, partial(hears, "stderr"))
            started.append(rank)
    return started


def _read(rank: _Rank, reader: Callable[..., None], *arguments: object) -> None:
    """Read a stream of a rank in a thread."""
    rank.readers.append(threading.Thread(target=reader, args=arguments, daemon=True))
    rank.readers[-1].start()


def _hear(stream: IO[bytes], told: Callable[[str], None]) -> None:
    """Tell each line that a rank writes, without its end."""
    with stream:
        for line in stream:
            told(line.decode(errors="replace").rstrip("\n"))


def _keep(stream: IO[bytes], kept: bytearray) -> None:
    """Keep the last of what a rank writes, so that it never waits for a reader."""
    with stream:
        while data := stream.read1(MOST_KEPT):  # type: ignore[attr-defined]  # a buffered pipe has it
            kept += data
            del kept[:-MOST_KEPT]


def _wait(started: Sequence[_Rank], grace_s: float) -> set[int]:
    """Wait until all ranks have ended; after a failure the others get `grace_s`. Return those that had to be ended."""
    ends_at = math.inf
    while True:
        now = time.monotonic()
        for rank in started:
            if rank.ended_at is None and rank.process.poll() is not None:
                rank.ended_at = now
                code = rank.process.returncode
                if code != 0:
                    ends_at = min(ends_at, now + (STOPPING_GRACE_S if code in STOPPED else grace_s))
        running = [rank for rank in started if rank.ended_at is None]
        if not running:
            return set()
        if now > ends_at:
            _end(running)
            for rank in running:
                rank.ended_at = time.monotonic()
            return {rank.number for rank in running}
        time.sleep(POLL_S)


def _end(started: Sequence[_Rank]) -> None:
    """End whoever still runs, also a stopped process, and leave no zombie."""
    for rank in started:
        if rank.process.poll() is None:
            rank.process.kill()
    for rank in started:
        rank.process.wait()


def _send(started: Sequence[_Rank], number: int) -> None:
    for rank in started:
        if rank.process.poll() is None:
            rank.process.send_signal(number)


class _Forwarding:
    """Hands Ctrl-C and requests to end on to the ranks while the block runs; notes them in `asked`."""

    def __init__(self, started: Sequence[_Rank], asked: list[int]) -> None:
        self._started, self._asked = started, asked
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                self._before[number] = signal.signal(number, self._forward)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave

    def _forward(self, number: int, frame: FrameType | None) -> None:
        meant = FORWARDED[signal.Signals(number)]
        self._asked.append(meant)
        _send(self._started, meant)
