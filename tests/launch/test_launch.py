"""Starting and ending processes, with a stand-in for the command that needs no torch."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from modelzoo.launch import processes
from modelzoo.launch.board import FolderBoard

RANK = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from modelzoo.launch import board_of
rank = int(os.environ["RANK"])
board = board_of(os.environ)
board.set(f"phase/{{rank}}", ["the forward of step 3", time.time()])
open(os.path.join({folder!r}, str(rank)), "w").write(str(os.getpid()))
def fail(text, code):
    board.set(f"error/{{rank}}", text)
    sys.exit(code)
def forever():
    while True:
        time.sleep(0.02)
"""


def run(monkeypatch, folder: Path, body: str, ranks: int = 2, **options) -> tuple[int, str]:
    script = folder / "rank.py"
    script.write_text(RANK.format(root=str(Path(processes.__file__).parents[2]), folder=str(folder)) + body)
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, str(script)))
    said: list[str] = []
    code = processes.launch([], ranks, say_error=said.append, **options)
    for rank in range(ranks):
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / str(rank)).read_text()), 0)
    return code, "\n".join(said)


def when_started(folder: Path, ranks: int, *numbers: int) -> None:
    """Send this process signals as soon as the ranks are there."""

    def send() -> None:
        while not all((folder / str(rank)).exists() for rank in range(ranks)):
            time.sleep(0.02)
        time.sleep(0.1)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    threading.Thread(target=send, daemon=True).start()


def test_every_rank_gets_its_place_and_its_share_of_the_cores(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS")
    body = (
        'names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")\n'
        f'open({str(tmp_path)!r} + f"/env{{rank}}", "w").write(" ".join(os.environ[name] for name in names))\n'
    )
    assert run(monkeypatch, tmp_path, body, 3, cores=8) == (0, "")
    assert [(tmp_path / f"env{rank}").read_text() for rank in range(3)] == [f"{rank} 3 {rank} 3 2" for rank in range(3)]


def test_rank_0_speaks_and_the_others_are_silent(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text('import os, sys\nprint("out", os.environ["RANK"])\nprint("err", os.environ["RANK"], file=sys.stderr)\n')
    program = (
        "import sys; from modelzoo.launch import processes; "
        f"processes.COMMAND = (sys.executable, {str(script)!r}); sys.exit(processes.launch([], 3, say_error=print))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out 0\n", "err 0\n")


def test_a_killed_rank_is_named_first_with_what_it_did_and_the_others_end(monkeypatch, tmp_path):
    body = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nforever()\n"
    started = time.monotonic()
    code, said = run(monkeypatch, tmp_path, body, 3, grace_s=0.3)
    assert code == 4
    assert said.startswith("rank 1 was lost in the forward of step 3: SIGKILL ended its process")
    assert time.monotonic() - started < 5


def test_the_rank_that_failed_first_comes_first_with_its_exit_code(monkeypatch, tmp_path):
    body = (
        'if rank == 2:\n    board.set_first("failure", {"rank": 2})\n    time.sleep(0.5)\n    fail("row 7 has no label", 2)\n'
        'fail("rank 2: row 7 has no label; rank " + str(rank) + " stopped with it", 4)\n'
    )
    code, said = run(monkeypatch, tmp_path, body, 3)
    assert code == 2
    assert said == "row 7 has no label", "the ranks that stopped with it do not say it again"


def test_what_a_rank_wrote_before_it_fell_is_shown(monkeypatch, tmp_path):
    body = 'if rank == 1:\n    raise KeyError("lost")\nforever()\n'
    code, said = run(monkeypatch, tmp_path, body, grace_s=0.3)
    assert code == 1
    assert said.startswith("rank 1: ended with exit code 1")
    assert "    KeyError: 'lost'" in said
    assert "rank 0 did not end by itself and was ended" in said


STOPPABLE = """
count = 0
def note(number, frame):
    global count
    count += 1
    if number == signal.SIGTERM:
        sys.exit(75)
    if count == 2:
        sys.exit(130)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
forever()
"""


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ((signal.SIGTERM,), 75, ""),
        ((signal.SIGHUP,), 75, ""),
        ((signal.SIGUSR1,), 75, ""),
        ((signal.SIGINT, signal.SIGINT), 130, "interrupted"),
    ],
    ids=["SIGTERM", "SIGHUP", "SIGUSR1", "twice Ctrl-C"],
)
def test_signals_reach_every_rank_once_for_each_time(monkeypatch, tmp_path, numbers, code, said):
    when_started(tmp_path, 2, *numbers)
    assert run(monkeypatch, tmp_path, STOPPABLE) == (code, said)


def test_a_stop_before_the_ranks_can_save_says_so(monkeypatch, tmp_path):
    when_started(tmp_path, 2, signal.SIGTERM)
    assert run(monkeypatch, tmp_path, "forever()") == (143, "stopped by SIGTERM before the first step; nothing was saved")


def test_a_board_keeps_the_first_note_and_the_last_value(tmp_path):
    one, other = FolderBoard(tmp_path), FolderBoard(tmp_path)
    assert one.get("failure") is None
    assert one.set_first("failure", {"rank": 1}) == {"rank": 1}
    assert other.set_first("failure", {"rank": 2}) == {"rank": 1}
    one.set("phase/0", "a long description of what is done")
    one.set("phase/0", "short")
    assert other.get("phase/0") == "short"
