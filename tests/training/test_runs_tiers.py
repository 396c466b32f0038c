"""Whole runs whose values are on disk: the same losses and weights as without tiers, stopped here and resumed there."""

import json
from pathlib import Path

import pytest
import yaml
from test_runs import StopAt, assert_same_end
from tiny_runs import settings_for

from modelzoo.errors import ConfigError
from modelzoo.runtime.tiers import Placement, attach
from modelzoo.runtime.tiers.unit import KINDS
from modelzoo.training import SilentProgress, resume, runs, train


@pytest.fixture
def everything_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget that a process can hold would send a model of a few values to the disk."""

    def place(sizes, **options):
        homes = tuple(dict.fromkeys(KINDS, "disk") for _ in sizes)
        return Placement(homes, 0, 16 * sum(unit.shard for unit in sizes), 0, 0)

    monkeypatch.setattr(attach, "place_units", place)


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


def test_a_budget_that_is_too_small_stops_a_run_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "Loop", None)
    settings = settings_for(tmp_path, memory__host="10MiB", memory__disk={"path": str(tmp_path / "swap")})
    with pytest.raises(ConfigError, match=r"memory: 10.0 MiB is too small: expected at least .* for the model and .* beside it"):
        train(settings, progress=SilentProgress())
    assert not (tmp_path / "swap").exists()


def test_updates_in_the_backward_are_refused_beside_clipping(tmp_path):
    with pytest.raises(
        ValueError, match=r"memory.optimizer_update=in_backward .* found train.clip_norm=1; add train.clip_norm=null"
    ):
        settings_for(tmp_path, train__clip_norm=1.0, **memory_of(tmp_path, "in_backward"))
