"""Whole runs whose values are on disk: the same losses and weights as without tiers, stopped here and resumed there."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from test_runs import StopAt, assert_same_end
from tiny_runs import settings_for

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers import Placement, attach, inputs
from modelzoo.runtime.tiers.unit import KINDS
from modelzoo.training import SilentProgress, forecast, resume, runs, train
from modelzoo.training.preparation import prepare


@pytest.fixture
def everything_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget that a process can hold would send a model of a few values to the disk."""

    monkeypatch.setattr(attach, "place_units", place_everything_on_disk)


def place_everything_on_disk(sizes, **options):
    homes = tuple(dict.fromkeys(KINDS, "disk") for _ in sizes)
    return Placement(homes, 0, 16 * sum(unit.shard for unit in sizes), 0, 0)


def memory_of(folder: Path, when: str = "deferred") -> dict[str, object]:
    return {"memory__host": "90%", "memory__disk": {"path": str(folder / "swap")}, "memory__optimizer_update": when}


@pytest.mark.usefixtures("everything_on_disk")
def test_a_run_whose_values_are_on_disk_ends_like_one_without_tiers(tmp_path):
    plain = train(settings_for(tmp_path), progress=SilentProgress())
    tiered = train(settings_for(tmp_path, **memory_of(tmp_path)), progress=SilentProgress())
    assert_same_end(plain, tiered, 12)
    assert not list((tmp_path / "swap").rglob("*.tier"))
    report = (tiered.folder / "report.txt").read_text()
    assert "written  " in report
    assert "exp_avg_sq " in report


@pytest.mark.usefixtures("everything_on_disk")
@pytest.mark.parametrize(("first", "then"), [("memory", "disk"), ("disk", "memory")])
def test_a_run_is_stopped_on_one_home_and_resumed_on_the_other(tmp_path, first, then):
    whole = train(settings_for(tmp_path), progress=SilentProgress())
    changes = {"memory": {}, "disk": memory_of(tmp_path)}
    stopped = train(settings_for(tmp_path, **changes[first]), progress=StopAt(7))
    resolved = stopped.folder / "resolved.yaml"
    values = yaml.safe_load(resolved.read_text())
    values["memory"] = json.loads(settings_for(tmp_path, **changes[then]).memory.model_dump_json())
    resolved.write_text(yaml.safe_dump(values))
    assert_same_end(whole, resume(stopped.folder, progress=SilentProgress()), 12)


@pytest.mark.usefixtures("everything_on_disk")
def test_a_run_with_tiers_leaves_a_timeline_with_its_plan(tmp_path):
    result = train(settings_for(tmp_path, **memory_of(tmp_path)), progress=SilentProgress())
    lines = [json.loads(line) for line in (result.folder / "timeline.jsonl").read_text().splitlines()]
    assert lines[0]["tiers"]["host"]["budget_bytes"] == int(0.9 * psutil.virtual_memory().total)
    assert lines[0]["kind"] == "plan"
    assert lines[0]["tiers"]["host"]["peak_bytes"] > 0
    assert lines[0]["step_s"] > 0
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3]
    text = (result.folder / "report.txt").read_text()
    assert "step 3   " in text
    assert text.count("  fullest") == 1
    assert not (train(settings_for(tmp_path), progress=SilentProgress()).folder / "timeline.jsonl").exists()


@pytest.mark.usefixtures("everything_on_disk")
def test_a_run_whose_activations_are_offloaded_ends_like_one_that_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "SMALLEST_BYTES", 1)
    plain = train(settings_for(tmp_path), progress=SilentProgress())
    changes = memory_of(tmp_path) | {"memory__activations": "offload", "parallel__recompute": "blocks"}
    tiered = train(settings_for(tmp_path, **changes), progress=SilentProgress())
    assert_same_end(plain, tiered, 12)
    assert "inputs " in (tiered.folder / "report.txt").read_text()
    assert not list((tmp_path / "swap").rglob("*.tier"))


@pytest.mark.usefixtures("everything_on_disk")
def test_room_for_offloaded_inputs_is_looked_for_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "Loop", None)
    asked = []

    class Folder(attach.TierFolder):
        def __init__(self, path, rank, needed_bytes, budget_bytes):
            asked.append(needed_bytes)
            raise ConfigError("enough seen")

    monkeypatch.setattr(attach, "TierFolder", Folder)
    for activations in ("keep", "offload"):
        changes = memory_of(tmp_path) | {"memory__activations": activations, "parallel__recompute": "blocks"}
        with pytest.raises(ConfigError, match="enough seen"):
            train(settings_for(tmp_path, **changes), progress=SilentProgress())
    data = prepare(settings_for(tmp_path))
    config = data.pretrained.skeleton().config
    longest = sum(sorted(data.train.lengths)[-4:])
    assert asked[1] - asked[0] == config.num_layers * 4 * longest * config.hidden_size


def test_recomputation_is_decided_by_what_is_free(tmp_path, monkeypatch):
    plain = train(settings_for(tmp_path), progress=SilentProgress())
    roomy = train(settings_for(tmp_path, parallel__recompute="auto"), progress=SilentProgress())
    assert '"recompute": "none"' in (roomy.folder / "report.json").read_text()
    real, seen = forecast.plan_run, []

    def tight_plan(settings, model, machine, **options):
        if settings.parallel.recompute == "auto":
            seen.append(machine)
            settings = settings.model_copy(update={"parallel": settings.parallel.model_copy(update={"recompute": "first 1"})})
        return real(settings, model, machine, **options)

    monkeypatch.setattr(forecast, "plan_run", tight_plan)
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1000)
    tight = train(settings_for(tmp_path, parallel__recompute="auto"), progress=SilentProgress())
    assert json.loads((tight.folder / "report.json").read_text())["layout"]["recompute"] == "first 1"
    assert seen[0].host_memory < seen[0].program_bytes + 2**20  # what the run has already, and 85 % of what is free
    for found in (roomy, tight):
        assert_same_end(plain, found, 12)


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_runs_tiers import memory_of, place_everything_on_disk
from tiny_runs import settings_for
from modelzoo.runtime.tiers import attach
from modelzoo.training import SilentProgress, train

class Killed(SilentProgress):
    def step(self, report):
        if report.step == 9:
            os.kill(os.getpid(), signal.SIGKILL)

attach.place_units = place_everything_on_disk
folder = Path({folder!r})
train(settings_for(folder, checkpoint__every=4, **memory_of(folder)), progress=Killed())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("everything_on_disk")
def test_a_run_with_tiers_that_was_killed_is_resumed_bit_for_bit(tmp_path):
    whole = train(settings_for(tmp_path, checkpoint__every=4), progress=SilentProgress())
    killed = tmp_path / "killed"
    killed.mkdir()
    script = KILLED.format(paths=[path for path in sys.path if "tests" in path], folder=str(killed))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((killed / "swap").rglob("*.tier"))
    run = next(path.parent for path in killed.rglob("resolved.yaml"))
    found = resume(run, progress=SilentProgress())
    assert found.stopped == "finished"
    assert_same_end(whole, found, 12)
    assert not list((killed / "swap").rglob("*.tier"))


def test_a_budget_that_is_too_small_stops_a_run_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "Loop", None)
    settings = settings_for(tmp_path, memory__host="10MiB", memory__disk={"path": str(tmp_path / "swap")})
    with pytest.raises(
        ConfigError, match=r"memory.host: 10.0 MiB is too small: expected at least .* for the model and .* beside it"
    ):
        train(settings, progress=SilentProgress())
    assert not (tmp_path / "swap").exists()


def test_updates_in_the_backward_are_refused_beside_clipping(tmp_path):
    with pytest.raises(
        ValueError, match=r"memory.optimizer_update=in_backward .* found train.clip_norm=1; add train.clip_norm=null"
    ):
        settings_for(tmp_path, train__clip_norm=1.0, **memory_of(tmp_path, "in_backward"))
