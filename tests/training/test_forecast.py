"""A run's report shows the plan beside what came of it, and planning changes nothing of the run."""

import json
from pathlib import Path

import torch
from tiny_runs import settings_for

from modelzoo.plan import read_parts
from modelzoo.runtime import connect
from modelzoo.training import train
from modelzoo.training.forecast import Outcome, forecast
from modelzoo.training.preparation import prepare


def test_the_report_of_a_run_shows_plan_and_measured(tmp_path: Path) -> None:
    result = train(settings_for(tmp_path, train__max_steps=2))
    text = (result.folder / "report.txt").read_text()
    assert "plan     peak" in text
    assert "measured" in text
    plan = json.loads((result.folder / "report.json").read_text())["plan"]
    assert min(plan["predicted_bytes"], plan["measured_bytes"], plan["predicted_step_s"], plan["measured_step_s"]) > 0
    assert plan["bound"] in ("compute", "memory", "communication", "disk")


def test_planning_draws_no_number_and_knows_the_lengths(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    data = prepare(settings)
    with connect(device="cpu") as world:
        before = torch.get_rng_state()
        plan = forecast(settings, data.pretrained.skeleton(), data.train, world, evaluated=())
    assert torch.equal(torch.get_rng_state(), before)
    assert plan is not None
    assert plan.work.lengths == tuple(sorted(data.train.lengths, reverse=True)[:4])
    assert plan.model == read_parts(data.pretrained.skeleton())


def test_what_cannot_be_planned_stops_no_run(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, parallel__tensor=3)
    data = prepare(settings)
    with connect(device="cpu") as world:
        assert forecast(settings, data.pretrained.skeleton(), data.train, world, evaluated=()) is None


def test_errors_are_shares_of_what_was_measured() -> None:
    text = str(Outcome(2**30, 2**29, 1.0, 0.0, "compute"))
    assert "1.0 GiB   measured  512.0 MiB   plan +100%" in text
    assert "not measured" in text
