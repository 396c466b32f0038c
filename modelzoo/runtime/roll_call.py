"""Who is where, and who is missing: what ranks tell each other beside the collectives, so that a failure can be named.

Each rank notes what it is about to do, and a thread of it shows every half second that the process still runs. When a collective
fails, those that notice say so, and the one that does not is looked for in the notes.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed import Store  # type: ignore[attr-defined]  # documented, and not in the package's __all__

import modelzoo.errors as errors
from modelzoo.errors import ModelZooError, RankError
from modelzoo.launch import PARENT_VARIABLE, Board
from modelzoo.runtime.lost import CollectiveLost

__all__ = ["RollCall", "StoreBoard"]

T = TypeVar("T")

BEAT_S = 0.5
PATIENCE_S = 3.0
"""How long a rank that noticed a failure looks for the one that caused it; six beats, so a rank without any is gone."""
POLL_S = 0.02


class StoreBoard:
    """A board in the store of the process group.

    Args:
        store: The run's own; a copy of the connection is made, since a board may not wait long.
    """

    def __init__(self, store: Store) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]  # torch 2.13 has it, its stubs do not
        self._store.set_timeout(timedelta(seconds=PATIENCE_S))

    def set(self, name: str, value: Any) -> None:
        """Write a note in place of the one before; nothing happens if the store is gone."""
        try:
            self._store.set(f"modelzoo/{name}", json.dumps(value))
        except RuntimeError:
            return

    def get(self, name: str) -> Any:
        """Return a note, or None where there is none or no store."""
        key = f"modelzoo/{name}"
        try:
            return json.loads(self._store.get(key)) if self._store.check([key]) else None
        except RuntimeError:
            return None

    def set_first(self, name: str, value: Any) -> Any:
        """Write a note unless there is one, and return the one that stays; without a store that is this one."""
        try:
            return json.loads(self._store.compare_set(f"modelzoo/{name}", "", json.dumps(value)))
        except RuntimeError:
            return value


class _NoBoard:
    """What is left of a board that does not answer."""

    def set(self, name: str, value: Any) -> None:
        """Do nothing."""

    def get(self, name: str) -> Any:
        """Return None."""

    def set_first(self, name: str, value: Any) -> Any:
        """Return the value."""
        return value


class RollCall:
    """One rank's part in knowing where all are.

    Args:
        board: Where ranks leave notes.
        rank: This one.
        world_size: How many there are.
        is_keeper: Whether this process holds the board, which ends with it; it then waits for the others to have read it.
        keeper: The rank that holds the board; None where the board outlives all ranks.

    Attributes:
        doing: What this rank does: "the forward of step 4".
    """

    def __init__(self, board: Board, rank: int, world_size: int, *, keeper: int | None) -> None:
        self.board, self.rank, self.world_size, self.keeper = board, rank, world_size, keeper
        self.doing = "its start"
        self._meetings = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="modelzoo-roll-call", daemon=True)

    def start(self) -> None:
        """Say that this rank is there, and from now on that it still runs."""
        self.board.set(f"process/{self.rank}", [socket.gethostname(), os.getpid()])
        self.enter("joining the others")
        self._thread.start()

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do."""
        self.doing = doing
        self.board.set(f"phase/{self.rank}", [doing, time.time()])

    def leave(self, how: str = "ended") -> None:
        """Note that this rank takes part no more."""
        if not self._stop.is_set():
            self._stop.set()
            self.board.set(f"left/{self.rank}", how)

    def arrive(self, doing: str, timeout_s: float) -> None:
        """Wait until every rank has come to as many meetings as this one.

        Args:
            doing: What the meeting is for: "the save of step 4".
            timeout_s: How long.

        Raises:
            RankError: Some rank has not come; the message says where it is.
        """
        self._meetings += 1
        self.board.set(f"met/{self.rank}", self._meetings)
        end, pause = time.monotonic() + timeout_s, POLL_S / 40
        while absent := [rank for rank in self._others() if (self.board.get(f"met/{rank}") or 0) < self._meetings]:
            if self.board.get("failure") is not None or any(self._is_gone(rank) for rank in absent):
                raise CollectiveLost(doing, "another rank failed")
            if time.monotonic() > end:
                where = self._phase(absent[0])
                raise RankError(
                    f"{doing} is for all ranks: rank {absent[0]} did not come within {timeout_s:g} s, it is in {where}; "
                    "call it on every rank, at the same step"
                )
            time.sleep(pause)
            pause = min(2 * pause, 2 * POLL_S)  # ranks that come together meet in a millisecond, and waiting costs nothing

    def explain(self, error: BaseException) -> Exception | None:
        """Return the error that this rank ends with, the cause's rank first; None for one that is to be raised as it is.

        Not collective. An error of this rank's own is told to the others; one that came from them is looked for in their notes.

        Args:
            error: What this rank ran into.
        """
        if not isinstance(error, CollectiveLost):
            own = {"rank": self.rank, "kind": type(error).__name__, "message": str(error), "doing": self.doing}
            kept = self.board.set_first("failure", own)
            self.board.set(f"noticed/{self.rank}", time.time())
            return self._failed(kept) if isinstance(error, Exception) else None
        self.board.set(f"noticed/{self.rank}", time.time())
        found = _within(PATIENCE_S + 1, lambda: self._find(error))
        if found is None:
            keeper = "torchrun's store" if self.keeper is None else f"rank {self.keeper}"
            found = {"lost": f"{keeper} does not answer any more; it holds the notes of where all ranks were"}
            self.board = _NoBoard()  # the thread that still waits for an answer holds the connection
        return self._failed(found) if "kind" in found else RankError(f"{found['lost']}; {self._noticed(error)}")

    def farewell(self) -> None:
        """Leave after a failure; the rank that holds the board stays until the others have read it, three seconds at most."""
        self.leave("failed")
        end = time.monotonic() + PATIENCE_S
        while self.keeper == self.rank and time.monotonic() < end:
            if all(self.board.get(f"left/{rank}") or self._is_gone(rank) for rank in self._others()):
                return
            time.sleep(POLL_S)

    def _failed(self, failure: Any) -> Exception:
        """Return the error of a rank that failed by itself, as this rank raises it."""
        rank, name, message, doing = (failure[key] for key in ("rank", "kind", "message", "doing"))
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, ModelZooError)):
            kind, message = RankError, f"{name}: {message}"
        with_it = "" if rank == self.rank else f"; rank {self.rank} stopped with it in {self.doing}"
        first, *more = f"{message}".split("\n")
        return kind("\n".join([f"rank {rank}: {first} (in {doing}){with_it}", *more]))

    def _noticed(self, error: CollectiveLost) -> str:
        return f"rank {self.rank} waited for it in {error.collective}, in {self.doing}"

    def _find(self, error: CollectiveLost) -> dict[str, Any]:
        """Return the note of the rank that failed first, or {"lost": who is missing and where it was}."""
        beats = {rank: self.board.get(f"beat/{rank}") for rank in self._others()}
        end = time.monotonic() + PATIENCE_S - 0.5
        while time.monotonic() < end:
            if (failure := self.board.get("failure")) is not None:
                return dict(failure)
            if (told := self.board.get("lost")) is not None:
                return dict(told)
            missing = [rank for rank in self._others() if self.board.get(f"noticed/{rank}") is None]
            known = {rank: _state_of(self.board.get(f"process/{rank}")) for rank in missing}
            gone = [rank for rank in missing if known[rank] in ("gone", "stopped")]
            if gone and self.board.get("failure") is None:
                return self._tell(gone[0], str(known[gone[0]]))
            if not missing:
                return {"lost": f"the connection between ranks broke ({error.reason})"}
            time.sleep(POLL_S)
        if self.keeper is not None and self.board.get(f"process/{self.rank}") is None:
            return {"lost": f"rank {self.keeper} was lost, and with it the notes of where it was"}
        silent = [rank for rank in missing if known[rank] is None and self.board.get(f"beat/{rank}") == beats[rank]]
        late = silent or missing
        return self._tell(min(late, key=lambda rank: self._since(rank)), "silent" if silent else "late")

    def _tell(self, rank: int, how: str) -> dict[str, Any]:
        """Settle for all ranks who is missing: the first that finds out decides."""
        where, seconds = self._phase(rank), time.time() - self._since(rank)
        left = self.board.get(f"left/{rank}")
        if left is not None:
            text = f"rank {rank} had left the run after {where}"
        else:
            text = {
                "gone": f"rank {rank} was lost in {where}: its process is gone",
                "stopped": f"rank {rank} is stopped in {where}, since {seconds:.1f} s (SIGSTOP, or a debugger)",
                "silent": f"rank {rank} was lost in {where}: nothing was heard of it for {PATIENCE_S:g} s",
                "late": f"rank {rank} is late: it runs, and is in {where} since {seconds:.1f} s",
            }[how]
        return dict(self.board.set_first("lost", {"lost": text}))

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _phase(self, rank: int) -> str:
        note = self.board.get(f"phase/{rank}")
        return str(note[0]) if note else "its start"

    def _since(self, rank: int) -> float:
        note = self.board.get(f"phase/{rank}")
        return float(note[1]) if note else 0.0

    def _is_gone(self, rank: int) -> bool:
        return _state_of(self.board.get(f"process/{rank}")) == "gone"

    def _beat(self) -> None:
        """Show that this process runs; ask it to save and end when what started it is gone."""
        parent = os.environ.get(PARENT_VARIABLE)
        count = 0
        while not self._stop.wait(BEAT_S):
            count += 1
            self.board.set(f"beat/{self.rank}", count)
            if parent is not None and os.getppid() != int(parent):
                parent = None
                os.kill(os.getpid(), signal.SIGTERM)


def _state_of(process: Any) -> str | None:
    """Return "gone", "stopped" or "runs" for a process of this machine, None for one of another or where nobody can tell."""
    if not isinstance(process, list) or process[0] != socket.gethostname():
        return None
    try:
        os.kill(process[1], 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return None
    try:
        state = Path(f"/proc/{process[1]}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(state, "runs")


def _within(seconds: float, action: Callable[[], T]) -> T | None:
    """Return what an action returns, None if it takes longer: a store whose process is stopped never answers."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(action()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
