"""What a run leaves when it ends, stops or fails."""

import json

import pytest
from tiny_runs import settings_for

from modelzoo.report import read_run, state_of
from modelzoo.training import SilentProgress, train
from modelzoo.training.ending import write_generation_config


class Fails(SilentProgress):
    def step(self, report):
        if report.step == 3:
            raise RuntimeError("the lights\nwent out")


class Stops(SilentProgress):
    def step(self, report):
        if report.step == 3:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def test_a_finished_run_has_its_page_and_its_card(tmp_path):
    result = train(settings_for(tmp_path, train__epochs=1.0), progress=SilentProgress())
    assert '<span class="state finished">finished</span>' in (result.folder / "report.html").read_text()
    card = (result.folder / "final" / "README.md").read_text()
    assert f"accuracy | validation | {result.best_metric:.4f}" in card
    assert "peak memory" in card
    assert state_of(read_run(result.folder)) == "finished"


def test_a_stopped_run_has_a_page_and_says_where_it_stopped(tmp_path):
    result = train(settings_for(tmp_path), progress=Stops())
    assert result.stopped == "preempted"
    run = read_run(result.folder)
    assert (state_of(run), run.result["step"]) == ("stopped", result.step)
    assert '<span class="state stopped">stopped</span>' in (result.folder / "report.html").read_text()
    assert (result.folder / "report.json").is_file()


def test_a_failed_run_says_why_in_its_log_and_page(tmp_path):
    with pytest.raises(RuntimeError, match="the lights"):
        train(settings_for(tmp_path), progress=Fails())
    folder = tmp_path / "runs" / "tiny-001"
    assert "ERROR RuntimeError: the lights went out" in (folder / "log.txt").read_text()
    assert state_of(read_run(folder)) == "failed"
    page = (folder / "report.html").read_text()
    assert "the lights went out" in page
    assert '<span class="state failed">failed</span>' in page


def test_a_page_that_cannot_be_written_does_not_fail_the_run(tmp_path, monkeypatch, caplog):
    import modelzoo.training.ending as ending

    def refuse(folder, **options):
        raise OSError(28, "no space left")

    monkeypatch.setattr(ending, "write_report", refuse)
    result = train(settings_for(tmp_path, train__epochs=0.5), progress=SilentProgress())
    assert result.stopped == "finished"
    assert "picture and report could not be written (OSError" in (result.folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("GPT2LMHeadModel", {"_from_model_config": True, "eos_token_id": 7}),
        ("BertForSequenceClassification", None),
    ],
)
def test_models_that_write_get_a_generation_config(tmp_path, architecture, expected):
    config = {"architectures": [architecture], "eos_token_id": 7, "bos_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_generation_config(tmp_path)
    file = tmp_path / "generation_config.json"
    assert (json.loads(file.read_text()) if file.exists() else None) == expected


def test_a_generation_config_that_is_there_stays(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text("{}")
    write_generation_config(tmp_path)
    assert (tmp_path / "generation_config.json").read_text() == "{}"
