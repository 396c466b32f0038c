"""`modelzoo slurm`: what stands in the file, and that the file runs with stand-ins for SLURM's own programs."""

import os
import subprocess
from pathlib import Path

import pytest

from modelzoo.cli import main

WORDS = ["slurm", "demo", "--nodes", "2", "--gpus-per-node", "4", "--time", "2:00:00", "--partition", "long"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_has_what_was_asked_for_and_is_bash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "train.epochs=2", "data.columns={text_a: question, text_b: passage, label: label}"]) == 0
    assert "demo.sbatch: 2 nodes x 4 processes on 4 GPUs, at most 2:00:00" in capsys.readouterr().out
    text = (folder / "demo.sbatch").read_text()
    for line in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=2:00:00", "--partition=long", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert "#SBATCH --signal=USR1@180\n" in text
    assert "train demo train.epochs=2 'data.columns={text_a: question, text_b: passage, label: label}'" in text
    done = subprocess.run(["bash", "-n", "demo.sbatch"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my.sbatch").write_text("precious")
    assert main(["slurm", "demo", "--output", "my.sbatch"]) == 2
    assert "my.sbatch: exists already" in capsys.readouterr().err
    assert (folder / "my.sbatch").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.lerning_rate=1"], "train.lerning_rate"),
        (["ranks=3"], "parallel.ranks=3: 2 nodes x 4 processes start 8"),
        (["--time", "soon"], "--time soon: expected minutes"),
        (["--output", "absent/x.sbatch"], "absent/x.sbatch: cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_run_is_refused_before_a_file_is_written(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(folder.glob("**/*.sbatch"))


def test_a_saved_run_is_put_back_into_the_queue_and_resumed(folder: Path) -> None:
    """srun prints what it is to run, and ends with 75 at first; scontrol notes that it was asked to requeue."""
    assert main([*WORDS, "--gpus-per-node", "0"]) == 0
    programs = folder / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        '#!/bin/bash\necho "srun $*"\nif [ -f done ]; then exit 0; fi\nsleep 0.3\nmkdir -p runs/demo-77-001\n'
        "touch runs/demo-77-001/resolved.yaml done\nexit 75\n"
    )
    (programs / "scontrol").write_text('#!/bin/bash\nif [ $1 = show ]; then echo node1; else echo "scontrol $*"; fi\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "77",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "2",
    }
    first, second = (
        subprocess.run(["bash", "demo.sbatch"], capture_output=True, text=True, env=environment, check=False) for _ in range(2)
    )
    assert (first.returncode, first.stderr) == (75, "")
    assert "they meet on node1" in first.stdout
    assert "srun --kill-on-bad-exit=0 python -m modelzoo train demo output.folder=runs output.name=demo-77" in first.stdout
    assert "scontrol requeue 77" in first.stdout
    assert (second.returncode, second.stderr) == (0, "")
    assert "modelzoo resume runs/demo-77-001" in second.stdout
    assert "requeue" not in second.stdout
