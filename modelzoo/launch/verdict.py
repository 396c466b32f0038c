"""Why a run on several processes ended as it did: from exit codes and the notes that ranks left, the cause first."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.launch.board import Board

__all__ = ["LOST", "STOPPED", "Ended", "phase_of", "verdict"]

LOST, PREEMPTED, INTERRUPTED = 4, 75, 130
"""Exit codes: of `RankError`, of a run that was preempted, and of one that was interrupted."""
STOPPED = frozenset({PREEMPTED, INTERRUPTED})
LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that has ended.

    Attributes:
        rank: Its number.
        code: As of `subprocess`: negative for the signal that ended it.
        was_ended: Whether it was killed because it had not ended by itself in time.
        errors: The last of its stderr; empty for rank 0, whose stderr was shown as it came.
    """

    rank: int
    code: int
    was_ended: bool
    errors: str


def verdict(ended: Sequence[Ended], board: Board, asked: Sequence[int]) -> tuple[int, str]:
    """Return the exit code of the run and what is to be said, "" for nothing.

    Args:
        ended: All ranks, in the order in which they ended.
        board: Their notes: `phase/RANK` [what it did, since when], `error/RANK` its message, `failure` of the first that failed.
        asked: Signals that the ranks were sent, in order.
    """
    if all(one.code == 0 for one in ended):
        return 0, ""
    killed = [one for one in ended if one.code < 0 and not one.was_ended and -one.code not in asked]
    if killed:
        return LOST, _blocks(_lost_text(killed[0], board), ended, board, killed[0].rank)
    stuck = [one for one in ended if one.was_ended]
    failed = [one for one in ended if one.code != 0 and not one.was_ended]
    if asked and not stuck and {one.code for one in failed} <= {*STOPPED, *(-number for number in asked)}:
        return _asked_to_stop(failed, board, asked)
    cause = _cause(failed, board)
    text = board.get(f"error/{cause.rank}") or f"rank {cause.rank}: ended with exit code {cause.code}"
    code = cause.code if cause.code > 0 else LOST
    if stuck:
        ranks = ", ".join(str(one.rank) for one in stuck)
        text += f"\n  rank {ranks} did not end by itself and was ended"
    return code, _blocks(text, ended, board, cause.rank)


def _asked_to_stop(failed: Sequence[Ended], board: Board, asked: Sequence[int]) -> tuple[int, str]:
    """Return what a run comes to that was asked to stop and did."""
    codes = {one.code for one in failed}
    if codes == {PREEMPTED}:
        return PREEMPTED, ""
    # a rank that trains saves and leaves without a word; one that is still loading says that it was interrupted, or says nothing
    is_early = len(asked) == 1 and any(board.get(f"error/{one.rank}") for one in failed)
    if min(codes) < 0 or is_early:
        return 128 + asked[0], f"stopped by {signal.Signals(asked[0]).name} before the first step; nothing was saved"
    return INTERRUPTED, "interrupted" if asked.count(signal.SIGINT) > 1 else ""


def _cause(failed: Sequence[Ended], board: Board) -> Ended:
    """Return the rank that said that it failed first; without such a note the first that ended."""
    first = board.get("failure")
    named = [one for one in failed if isinstance(first, dict) and one.rank == first.get("rank")]
    told = [one for one in failed if board.get(f"error/{one.rank}")]
    return (named or told or list(failed))[0]


def _lost_text(lost: Ended, board: Board) -> str:
    name = signal.Signals(-lost.code).name
    advice = "the system ends processes in this way when memory is short" if lost.code == -signal.SIGKILL else "it ended by a fault"
    return f"rank {lost.rank} was lost in {phase_of(board, lost.rank)}: {name} ended its process; {advice}"


def phase_of(board: Board, rank: int) -> str:
    """Return what a rank did last: "the backward of step 4"."""
    note = board.get(f"phase/{rank}")
    return str(note[0]) if isinstance(note, list) and note else "its start"


def _blocks(cause: str, ended: Sequence[Ended], board: Board, rank: int) -> str:
    """Return the cause, then what other ranks said that is not the same, then what they wrote."""
    blocks = [cause]
    core = _gist(cause).rpartition(" (in ")[0] or _gist(cause)
    for one in sorted(ended, key=lambda one: one.rank):
        note: Any = board.get(f"error/{one.rank}")
        if one.rank != rank and isinstance(note, str) and _gist(note) not in _gist(cause) and core not in note:
            blocks.append(f"  rank {one.rank}: {_gist(note)}")
        lines = one.errors.strip().splitlines()
        if one.code != 0 and lines and (note is None or "Traceback (most recent call last):" in lines):
            blocks += [f"  rank {one.rank} wrote:", *(f"    {line}" for line in lines[-LAST_LINES:])]
    return "\n".join(blocks)


def _gist(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
