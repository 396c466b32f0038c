"""runs, show, plot and compare: from run folders written by hand, without torch; show RECIPE says where each setting was set."""

import fcntl
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from written_runs import write_run

from modelzoo.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs that finished, stopped and failed, one of them in a folder below."""
    write_run(tmp_path / "runs" / "a-001")
    write_run(tmp_path / "runs" / "sweep" / "b-001", steps=20, ending="interrupted", optimizer__lr=1e-4, train__seed=7)
    failed = write_run(tmp_path / "runs" / "c-001", steps=7, ending=None)
    with (failed / "log.txt").open("a") as file:
        file.write("2026-11-30T02:00:09Z ERROR NonFiniteError: loss is nan at step 8\n")
    return tmp_path / "runs"


def test_runs_lists_state_step_and_best_metric(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert [Path(name).name for name in sorted(lines)] == ["a-001", "c-001", "b-001"]
    assert "finished  40/40  accuracy 0.9000" in lines[f"{folder}/a-001"]
    assert "stopped   20/40  accuracy 0.7000" in lines[f"{folder}/sweep/b-001"]
    assert "failed    7 " in lines[f"{folder}/c-001"]


def test_a_run_that_holds_its_lock_is_running(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "a-001" / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["runs", str(folder), "--json"]) == 0
    states = {run["name"]: run["state"] for run in json.loads(capsys.readouterr().out)}
    assert states == {"a-001": "running", "b-001": "stopped", "c-001": "failed"}


def test_a_folder_without_runs_says_so_and_a_missing_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "no run in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "expected a folder with runs in it, found nothing" in capsys.readouterr().err


def test_show_says_why_a_run_failed_and_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder / "c-001")]) == 0
    out = capsys.readouterr().out
    assert "PROBLEM" in out
    assert "NonFiniteError: loss is nan at step 8" in out
    assert main(["show", str(folder / "sweep" / "b-001")]) == 0
    out = capsys.readouterr().out
    assert "stopped at step 20 of 40" in out
    assert f"modelzoo resume {folder}/sweep/b-001" in out
    assert "accuracy 0.7000  f1 0.4000" in out


def test_show_json_has_numbers_files_and_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder / "a-001"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["best"], found["best_evaluation"]["f1"]) == ("finished", 0.9, 0.4)
    assert found["files"]["metrics.jsonl"].endswith("a-001/metrics.jsonl")
    assert found["settings"]["model"]["name"] == "some/model"
    assert found["findings"][0]["text"].startswith("train: 36 of 360 rows")


def test_show_writes_the_report_of_an_old_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder / "a-001"), "--report"]) == 0
    assert f"wrote {folder}/a-001/report.html" in capsys.readouterr().out
    assert (folder / "a-001" / "report.html").is_file()


def test_show_of_a_recipe_says_where_each_setting_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "demo", "learning_rate=1e-4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["optimizer.lr"] == {"value": 1e-4, "from": "the command line"}
    assert found["optimizer.eps"] == {"value": 1e-8, "from": "default"}
    assert found["data.max_length"]["from"].startswith("recipe.yaml:")
    assert main(["show", "demo", "learning_rate=1e-4"]) == 0
    out = capsys.readouterr().out
    assert "learning_rate is read as optimizer.lr=0.0001" in out
    assert [line.split()[1:] for line in out.splitlines() if line.split()[:1] == ["optimizer.eps"]] == [["1e-08", "default"]]


def test_show_of_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "demoo"]) == 2
    assert "did you mean demo?" in capsys.readouterr().err
    write_run(tmp_path / "run")
    assert main(["show", str(tmp_path / "run"), "train.epochs=2"]) == 2
    assert "a run's settings are what they were" in capsys.readouterr().err


def test_plot_draws_text_or_one_picture_and_overwrites_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    two = [str(folder / "a-001"), str(folder / "sweep" / "b-001")]
    assert main(["plot", *two]) == 0
    out = capsys.readouterr().out
    assert out.count("█") > 2
    assert "0.9048 to 0.01832" in out
    assert main(["plot", *two, "--output", str(folder / "both.png")]) == 0
    assert (folder / "both.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", *two, "--output", str(folder / "both.png")]) == 2
    assert "exists already and is left as it is" in capsys.readouterr().err


def test_compare_shows_what_differs_and_whether_data_are_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder / "sweep" / "b-001" / "data.json"
    data.write_text(data.read_text().replace("traintraintraintrain", "other"))
    two = [str(folder / "a-001"), str(folder / "sweep" / "b-001")]
    assert main(["compare", *two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"train.seed": [42, 7], "optimizer.lr": [5e-5, 1e-4]}
    assert found["data"] == {"train": False, "validation": True}
    assert found["metrics"]["eval accuracy"] == [0.9, 0.7]
    assert main(["compare", *two]) == 0
    out = capsys.readouterr().out
    assert "optimizer.lr" in out
    assert "different" in out


def test_runs_of_several_seeds_have_a_mean_and_a_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / f"a-00{seed}", train__seed=seed) for seed in (1, 2, 3)]
    accuracies = [0.81, 0.85, 0.86]
    for run, accuracy in zip(runs, accuracies, strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if "evaluation" in line:
                line["evaluation"]["accuracy"] = accuracy
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["compare", *map(str, runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"train.seed": [1, 2, 3]}
    assert found["metrics"]["eval accuracy"] == accuracies
    assert found["spread"]["eval accuracy"] == pytest.approx([statistics.mean(accuracies), statistics.stdev(accuracies)])
    assert not {"state", "step", "best step"} & set(found["spread"])
    assert main(["compare", *map(str, runs)]) == 0
    assert re.search(r"(?m)^ eval accuracy +0.81 +0.85 +0.86 +0.84 \+- 0.026$", capsys.readouterr().out)

    other = write_run(tmp_path / "b-001", train__seed=4, optimizer__lr=1e-4)
    assert main(["compare", *map(str, runs), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["spread"], found["settings"]["optimizer.lr"]) == ({}, [5e-5, 5e-5, 5e-5, 1e-4])
    assert main(["compare", str(other)]) == 2
    assert "expected two runs or more" in capsys.readouterr().err


def test_looking_at_runs_loads_neither_torch_nor_transformers(folder: Path) -> None:
    script = (
        "import sys; from modelzoo.cli import main\n"
        f"assert main(['runs', {str(folder)!r}]) == 0 and main(['show', {str(folder / 'a-001')!r}, '--report']) == 0\n"
        f"assert main(['compare', {str(folder / 'a-001')!r}, {str(folder / 'c-001')!r}]) == 0\n"
        "assert not {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_compare_speaks_of_sizes_and_of_no_empty_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_run(tmp_path / "a-001"), write_run(tmp_path / "b-001", data__columns={"text_a": "question"})
    assert main(["compare", str(first), str(second)]) == 0
    out = capsys.readouterr().out
    assert "data.columns.text_a" in out
    assert "{}" not in out
    assert "peak memory    452.8 MiB  452.8 MiB" in out
    assert "474755072" not in out
