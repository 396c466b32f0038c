"""Trackers hear every number once, go on in the same run after a resume, and can neither ask nor stop a run."""

import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_runs import settings_for

from modelzoo.report import read_records
from modelzoo.training import SilentProgress, resume, train


class Service:
    """Stands in for the module of wandb or trackio, and keeps what it is told."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0
        self.fails_at: int | None = None
        self.Settings = SimpleNamespace

    def init(self, **options: Any) -> "Service":
        self.started.append(options)
        return self

    def log(self, values: dict[str, float], *, step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("the service is down")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setitem(sys.modules, "trackio", made)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", os.devnull)
    return made


class Stops(SilentProgress):
    def step(self, report):
        if report.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_hears_what_the_metrics_file_has(tmp_path, service, name):
    result = train(settings_for(tmp_path, output__trackers=[name]), progress=SilentProgress())
    records = list(read_records(result.folder / "metrics.jsonl"))
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    assert [(step, values["train/loss"]) for step, values in service.logged if "train/loss" in values] == losses
    evaluations = [(record["step"], record["evaluation"]["accuracy"]) for record in records if "evaluation" in record]
    assert [(step, values["eval/accuracy"]) for step, values in service.logged if "eval/accuracy" in values] == evaluations
    assert [values["train/tokens"] for _, values in service.logged if "train/loss" in values][-1] == records[-2]["tokens"]
    assert service.started[0]["name"] == "tiny-001"
    assert service.started[0]["config"]["optimizer"]["lr"] == 1e-2
    assert service.finished == 1


def test_a_resumed_run_goes_on_in_the_same_one(tmp_path, service):
    stopped = train(settings_for(tmp_path, output__trackers=["wandb", "trackio"]), progress=Stops())
    assert stopped.stopped == "preempted"
    resume(stopped.folder, progress=SilentProgress())
    wandb = [options for options in service.started if "id" in options]
    assert len(wandb) == 2
    assert wandb[0]["id"] == wandb[1]["id"] == json.loads((stopped.folder / "wandb.json").read_text())["id"]
    assert all(options["resume"] == "allow" for options in service.started)
    assert len({options["name"] for options in service.started}) == 1
    steps = [step for step, values in service.logged if "train/loss" in values]
    assert sorted(set(steps)) == list(range(1, 13))


def test_without_a_key_wandb_is_offline_and_nothing_is_asked(tmp_path, service, caplog):
    result = train(settings_for(tmp_path, output__trackers="wandb", train__epochs=0.5), progress=SilentProgress())
    assert service.started[0]["mode"] == "offline"
    assert "wandb has no key, so it writes offline; later: wandb sync" in (result.folder / "log.txt").read_text()


@pytest.mark.parametrize(("variable", "value", "mode"), [("WANDB_API_KEY", "k", None), ("WANDB_MODE", "disabled", "disabled")])
def test_a_key_or_a_mode_of_the_user_holds(tmp_path, service, monkeypatch, variable, value, mode):
    monkeypatch.setenv(variable, value)
    train(settings_for(tmp_path, output__trackers=["wandb"], train__epochs=0.5), progress=SilentProgress())
    assert service.started[0]["mode"] == mode


def test_a_service_that_fails_is_let_go_with_one_warning_and_the_run_goes_on(tmp_path, service):
    service.fails_at = 3
    result = train(settings_for(tmp_path, output__trackers=["trackio"]), progress=SilentProgress())
    assert result.stopped == "finished"
    assert [step for step, _ in service.logged] == [1, 2]
    text = (result.folder / "log.txt").read_text()
    assert text.count("trackio failed and is not told any more: ConnectionError: the service is down") == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_one_warning(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    result = train(settings_for(tmp_path, output__trackers=[name], train__epochs=0.5), progress=SilentProgress())
    assert result.stopped == "finished"
    assert (result.folder / "log.txt").read_text().count(f"output.trackers: {name} is not used") == 1


def test_names_are_checked_with_the_settings():
    from modelzoo.config import load_settings
    from modelzoo.errors import ConfigError

    assert load_settings("demo", ["report_to=wandb"]).output.trackers == ("wandb",)
    assert load_settings("demo", ["report_to=none"]).output.trackers == ()
    assert load_settings("demo", ["output.trackers=[wandb,tensorboard]"]).output.trackers == ("wandb", "tensorboard")
    with pytest.raises(ConfigError, match="mlflow"):
        load_settings("demo", ["output.trackers=[mlflow]"])


def test_tensorboard_files_hold_the_numbers_and_nothing_twice_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped = train(settings_for(tmp_path, output__trackers=["tensorboard"]), progress=Stops())
    result = resume(stopped.folder, progress=SilentProgress())
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    records = [record for record in read_records(result.folder / "metrics.jsonl") if "loss" in record]
    assert found == [(record["step"], pytest.approx(record["loss"])) for record in records]
