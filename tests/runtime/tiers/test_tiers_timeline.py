"""The timeline of the first steps says what each tier held, what was moved and how long the model waited."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_runs import Plan, laid_out, run, take

from modelzoo.runtime import World, connect, report
from modelzoo.runtime.tiers.timeline import RECORDED_STEPS, Timeline, timeline_of

PLAN = Plan(layout="everything", when="deferred", steps=5, accumulation=2)
PLANNED = {
    "step_s": 0.5,
    "tiers": {"host": {"budget_bytes": 100, "peak_bytes": 2**30, "lines": {"program": 2**29}}},
    "traffic": {"disk>host": 12345, "host>disk": 0},
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("layout", ["everything", "40%", "100%"])
def test_a_recorded_run_has_a_plan_its_samples_and_its_steps(layout: str, world: World, tmp_path: Path) -> None:
    plan = Plan(layout=layout, when="deferred", accumulation=2)
    path = tmp_path / "timeline.jsonl"
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        Timeline(model, tiers, optimizer, path, planned=PLANNED)
        before = dict(tiers.traffic.read_bytes)
        for step in range(5):
            take(model, optimizer, plan, world, step)
            if step == RECORDED_STEPS - 1:
                read = tiers.traffic.read_bytes.total() - sum(before.values())
        lines = lines_of(path)
        assert lines[0] == {"kind": "plan", **PLANNED}
        samples = [line for line in lines if line["kind"] == "sample"]
        steps = [line for line in lines if line["kind"] == "step"]
        assert [step["step"] for step in steps] == [1, 2, 3]
        assert [sample["time_s"] for sample in samples] == sorted(sample["time_s"] for sample in samples)
        blocks = [unit.name for unit in tiers.units if unit.module is not model]
        own = [(sample["event"], sample["unit"]) for sample in samples if sample["step"] == 2]
        once = [("forward", name) for name in blocks] + [("loss", "")] + [("backward", name) for name in reversed(blocks)]
        assert own == [*once, *once, ("update", ""), ("updated", "")]
        # two reads end before the steps that are recorded do, or later: what a step of `deferred` moves is read in the next one
        assert sum(sum(step["traffic"]["disk>host"].values()) for step in steps) <= read
        assert steps[-1]["stall_s"] >= 0
        assert len(timeline_of(tiers).complete) == RECORDED_STEPS


def test_kinds_are_where_their_homes_are(world: World, tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    for layout, here, away in (("everything", "slots", {"parameters", "gradients", "moments"}), ("100%", "moments", set())):
        with laid_out(Plan(layout=layout, sharded=True), world, tmp_path) as (model, optimizer, tiers):
            Timeline(model, tiers, optimizer, path)
            for step in range(3):
                take(model, optimizer, Plan(layout=layout), world, step)
        samples = [line for line in lines_of(path) if line["kind"] == "sample" and line["step"] == 3]
        assert all(sample["resident"]["host"][here] > 0 for sample in samples)
        assert {kind for sample in samples for kind in sample["resident"]["disk"]} == away
        assert all(("moments" in sample["resident"]["host"]) == (layout == "100%") for sample in samples)
        assert any(sample["resident"]["host"].get("working copies") for sample in samples)
        moved = [sample["traffic"]["disk>host"] for sample in samples]
        assert moved == sorted(moved)
        assert bool(moved[-1]) == bool(away)


def test_a_recorded_run_is_the_same_run(world: World, tmp_path: Path) -> None:
    expected = run(PLAN.reference(), world, tmp_path)
    with laid_out(PLAN, world, tmp_path) as (model, optimizer, tiers):
        Timeline(model, tiers, optimizer, tmp_path / "timeline.jsonl")
        losses = [take(model, optimizer, PLAN, world, step)[0] for step in range(PLAN.steps)]
    assert losses == expected.losses


def test_hooks_are_gone_after_the_recorded_steps(world: World, tmp_path: Path) -> None:
    with laid_out(PLAN, world, tmp_path) as (model, optimizer, tiers):
        before = {module: (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()}
        Timeline(model, tiers, optimizer, steps=1)
        take(model, optimizer, PLAN, world, 0)
        after = {module: (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()}
        assert before == after
        assert not optimizer._optimizer_step_pre_hooks


def test_the_report_shows_the_picture_and_the_plan_beside_it(world: World, tmp_path: Path) -> None:
    with laid_out(PLAN, world, tmp_path) as (model, optimizer, tiers):
        assert "fullest" not in str(report(model, optimizer))
        Timeline(model, tiers, optimizer, planned=PLANNED)
        for step in range(3):
            take(model, optimizer, PLAN, world, step)
        text = str(report(model, optimizer))
        assert "step 3   " in text
        assert "of which the model waited" in text
        assert text.count("  fullest") == 1
        assert "plan    1.0 GiB   measured" in text
        assert "plan      0.5 s   measured" in text
        assert report(model, optimizer).to_json()["tiers"]["timeline"]


def test_a_folder_that_cannot_be_written_costs_the_picture_and_not_the_run(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with laid_out(PLAN, world, tmp_path) as (model, optimizer, tiers):
        Timeline(model, tiers, optimizer, tmp_path / "missing" / "timeline.jsonl")
        take(model, optimizer, PLAN, world, 0)
        assert "missing/timeline.jsonl: no timeline is written: No such file or directory" in caplog.text
        assert len(timeline_of(tiers).complete) == 1
