"""`modelzoo train ranks=N` and `modelzoo resume`, as they are typed: real processes that train."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelzoo.cli import main
from modelzoo.launch.place import place_of

SETTINGS = ["train.batch_size=4", "parallel.timeout_s=20", "output.name=run"]
LONG = ["train.epochs=2000", "checkpoint.every=1000000", "evaluation.every=1000000"]


@contextlib.contextmanager
def started(folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "modelzoo", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, **environment}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_step(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step=1/"):
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find the processes")
def test_ctrl_c_saves_all_ranks_stop_and_another_number_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, "train", "demo", "ranks=2", *SETTINGS, *LONG) as process:
        first_step(process)
        ranks = children(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert "continue with: modelzoo resume runs/run-001" in output
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)
    run = tmp_path / "runs" / "run-001"
    saved = json.loads((next((run / "checkpoints").glob("step-*")) / "manifest.json").read_text())
    assert saved["world_size"] == 2
    with started(tmp_path, "resume", "runs/run-001", "--ranks", "1") as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("resume "))
        assert "saved on 2 processes, now 1" in line
        process.send_signal(signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find the processes")
def test_a_killed_rank_ends_the_run_with_its_name_and_exit_code_4(tmp_path: Path) -> None:
    with started(tmp_path, "train", "demo", "ranks=2", *SETTINGS, *LONG) as process:
        first_step(process)
        begin = time.monotonic()
        os.kill(children(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 4
    assert errors.startswith("error: rank 1 was lost in the ") or errors.startswith("error: rank 1 was lost in reading the batch")
    assert "SIGKILL ended its process" in errors.splitlines()[0]
    assert "  rank 0: rank 1 was lost in " in errors
    assert time.monotonic() - begin < 25


def test_two_tasks_of_a_step_find_each_other_without_torchrun(tmp_path: Path) -> None:
    environment = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NODELIST": "localhost",
        "SLURM_NNODES": "1",
    }
    words = ["train", "demo", *SETTINGS, "train.max_steps=2", "parallel.ranks=2"]
    with (
        started(tmp_path, *words, SLURM_PROCID="0", SLURM_LOCALID="0", **environment) as one,
        started(tmp_path, *words, SLURM_PROCID="1", SLURM_LOCALID="1", **environment) as other,
    ):
        output, errors = one.communicate(timeout=120)
        assert (one.returncode, errors) == (0, "")
        assert "2 processes on cpu" in output
        assert other.communicate(timeout=60) == ("", "")
        assert other.returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_another_number_of_ranks_than_torchrun_started_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert place_of(os.environ).world_size == 2
    assert main(["train", "demo", "ranks=4"]) == 2
    assert "parallel.ranks=4: this run was started on 2 processes" in capsys.readouterr().err


def test_more_processes_than_memory_are_refused_before_one_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modelzoo.cli.ranks.launch", lambda *words, **options: pytest.fail("it started them"))
    monkeypatch.setattr("modelzoo.cli.ranks._PROCESS_BYTES", 2**34)
    assert main(["train", "demo", "ranks=64"]) == 2
    said = capsys.readouterr().err
    assert "parallel.ranks=64: 64 processes take at least 1024.0 GiB before they hold a model" in said
    assert "this machine has" in said


def test_ranks_are_not_started_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modelzoo.config import load_settings
    from modelzoo.errors import ConfigError
    from modelzoo.training import SilentProgress, train

    with pytest.raises(ConfigError, match=r"parallel\.ranks=3: this run has 1 process; start 3 with `modelzoo train`"):
        train(load_settings("demo", ["parallel.ranks=3", f"output.folder={tmp_path}/runs"]), progress=SilentProgress())
    assert not (tmp_path / "runs").exists()


def test_how_a_run_ended_is_json_for_a_program(tmp_path: Path) -> None:
    words = ["train", "demo", "train.max_steps=2", "data.max_rows=16", "output.name=run", "--json"]
    with started(tmp_path, *words, "ranks=2") as process:
        output, errors = process.communicate(timeout=180)
    assert process.returncode == 0
    assert "step=2/2 " in errors
    found = json.loads(output)
    assert (found["stopped"], found["step"], found["metric"]) == ("finished", 2, "accuracy")
    assert Path(found["folder"]) == tmp_path / "runs" / "run-001"
    assert Path(found["final"]) == tmp_path / "runs" / "run-001" / "final"
    with started(tmp_path, "resume", "runs/run-001", "--json", "--ranks", "1") as process:
        output, errors = process.communicate(timeout=180)
    assert "is finished already" in errors
    assert json.loads(output) == found


def test_doctor_measures_exchanges_and_says_the_backend(tmp_path: Path) -> None:
    with started(tmp_path, "doctor", "--comm", "--ranks", "2", "--json") as process:
        output, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (0, "")
    found = json.loads(output)
    assert (found["backend"], found["ranks"]) == ("gloo", 2)
    assert {one["kind"] for one in found["exchanges"]} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert len(found["exchanges"]) == 12
    assert all(one["seconds"] > 0 and one["bytes_per_s"] > 0 for one in found["exchanges"])


def test_ranks_of_doctor_are_for_the_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--ranks", "3"]) == 2
    assert "--ranks 3 is for --comm" in capsys.readouterr().err
