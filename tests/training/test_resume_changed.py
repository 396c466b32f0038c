"""A run is resumed with other settings where they decide nothing about the result; those that do are refused first."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from test_runs import StopAt, assert_same_end
from tiny_runs import settings_for

import modelzoo
from modelzoo.cli import main
from modelzoo.config import RunSettings
from modelzoo.errors import ConfigError
from modelzoo.training import RunResult, SilentProgress, resume, train


def stopped_and_whole(folder: Path) -> tuple[RunResult, RunResult]:
    settings: RunSettings = settings_for(folder)
    return train(settings, progress=StopAt(7)), train(settings, progress=SilentProgress())


def test_a_run_goes_on_in_another_layout_and_place_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped, whole = stopped_and_whole(tmp_path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("train.jsonl", "validation.jsonl"):
        shutil.move(tmp_path / name, moved / name)
    shutil.move(tmp_path / "model", moved / "model")
    words = ["parallel.recompute=blocks", f"data.train={moved / 'train.jsonl'}", f"data.validation={moved / 'validation.jsonl'}"]
    assert main(["resume", str(stopped.folder), *words, f"model={moved / 'model'}", "--output.log_every_s", "30"]) == 0
    assert len((stopped.folder / "command.txt").read_text().splitlines()) == 2
    assert_same_end(whole, modelzoo.Run(stopped.folder).result, 12)
    kept = yaml.safe_load((stopped.folder / "resolved.yaml").read_text())
    assert (kept["parallel"]["recompute"], kept["output"]["log_every_s"]) == ("blocks", 30.0)
    assert kept["data"]["train"] == str(moved / "train.jsonl")


def test_python_does_the_same(tmp_path: Path) -> None:
    stopped, whole = stopped_and_whole(tmp_path)
    run = modelzoo.resume(stopped.folder, progress=SilentProgress(), parallel={"recompute": "blocks"})
    assert run.settings.parallel.recompute == "blocks"
    assert_same_end(whole, run.result, 12)


def test_what_decides_about_the_result_is_refused_with_both_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped, _ = stopped_and_whole(tmp_path)
    before = (stopped.folder / "resolved.yaml").read_text()
    assert main(["resume", str(stopped.folder), "optimizer.lr=1", "train.seed=8", "parallel.recompute=blocks"]) == 2
    error = capsys.readouterr().err
    assert "2 settings decide about the result" in error
    assert "optimizer.lr: the run has 0.01, asked for 1.0" in error
    assert "train.seed: the run has 7, asked for 8" in error
    assert "start a new run" in error
    assert main(["resume", str(stopped.folder), "parallel.recompte=blocks"]) == 2
    assert "did you mean parallel.recompute?" in capsys.readouterr().err
    assert (stopped.folder / "resolved.yaml").read_text() == before


def test_it_is_refused_without_a_checkpoint_too(tmp_path: Path) -> None:
    stopped, _ = stopped_and_whole(tmp_path)
    shutil.rmtree(stopped.folder / "checkpoints")
    with pytest.raises(ConfigError, match=r"optimizer.lr: the run has 0.01, asked for 0.5"):
        resume(stopped.folder, changes={"learning_rate": 0.5})
    assert json.loads((stopped.folder / "result.json").read_text())["stopped"] == "preempted"
