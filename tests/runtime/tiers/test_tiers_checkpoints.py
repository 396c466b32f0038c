"""Checkpoints and saved models are the same wherever values live, and go from any home to any other, one tensor at a time."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import run_distributed
from safetensors.torch import load_file
from tier_runs import Came, Plan, came, laid_out, run, take

from modelzoo.runtime import Identity, World, connect, load_checkpoint, save_checkpoint
from modelzoo.runtime.tiers.stand_in import AwayValues

IDENTITY = Identity("config", "data")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


def first_part(plan: Plan, world: World, folder: Path, steps: int) -> Path:
    """Take some steps and save."""
    with laid_out(plan, world, folder / "first") as (model, optimizer, _):
        for step in range(steps):
            take(model, optimizer, plan, world, step)
        return save_checkpoint(folder / "saved", steps, model=model, optimizer=optimizer, world=world, state={}, identity=IDENTITY)


def second_part(plan: Plan, world: World, folder: Path, saved: Path, steps: range) -> Came:
    """Load what was saved and take the others."""
    with laid_out(plan, world, folder / "second") as (model, optimizer, _):
        load_checkpoint(saved, model=model, optimizer=optimizer, world=world)
        taken = [take(model, optimizer, plan, world, step) for step in steps]
        return came(model, optimizer, [loss for loss, _ in taken], [norm for _, norm in taken])


def resumed(first: Plan, second: Plan, world: World, folder: Path) -> str:
    """Return what differs from steps that were never stopped."""
    whole = run(Plan(model=first.model, steps=4, parallel=first.parallel), world, folder)
    saved = first_part(first, world, folder, 2)
    found = second_part(second, world, folder, saved, range(2, 4))
    return found.difference(Came(whole.losses[2:], whole.norms[2:], whole.parameters, whole.moments))


CROSSINGS = [
    ("none", "everything", "step", "deferred"),
    ("everything", "none", "deferred", "step"),
    ("everything", "40%", "deferred", "deferred"),
    ("moments", "everything", "step", "step"),
    ("gradients", "moments", "deferred", "step"),
]


@pytest.mark.parametrize(("first", "second", "when", "then"), CROSSINGS)
def test_a_run_resumes_on_any_other_layout_bit_for_bit(
    first: str, second: str, when: str, then: str, world: World, tmp_path: Path
) -> None:
    assert not resumed(Plan(layout=first, when=when), Plan(layout=second, when=then), world, tmp_path)


def test_what_is_saved_does_not_depend_on_the_layout(world: World, tmp_path: Path) -> None:
    files: dict[str, dict[str, torch.Tensor]] = {}
    for layout, when in (("none", "step"), ("everything", "step"), ("everything", "deferred"), ("40%", "deferred")):
        saved = first_part(Plan(model="t5", layout=layout, when=when), world, tmp_path / f"{layout}-{when}", 2)
        found = {f"{kind}/{k}": v for kind in ("model", "optimizer") for k, v in load_file(saved / f"{kind}.safetensors").items()}
        files.setdefault("first", found)
        assert found.keys() == files["first"].keys()
        assert all(torch.equal(value, files["first"][name]) for name, value in found.items())


class Alive:
    """Counts the tensors that were read from a tier and not let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.most, self.reads = 0, 0, 0
        read = AwayValues.read

        def counted(away: AwayValues) -> torch.Tensor:
            values = read(away)
            self.now, self.reads = self.now + 1, self.reads + 1
            self.most = max(self.most, self.now)
            weakref.finalize(values.untyped_storage(), self._let_go)
            return values

        monkeypatch.setattr(AwayValues, "read", counted)

    def _let_go(self) -> None:
        self.now -= 1


def test_saving_reads_one_tensor_at_a_time(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(model="bert", layout="everything", when="deferred")
    with laid_out(plan, world, tmp_path) as (model, optimizer, _):
        take(model, optimizer, plan, world, 0)
        gc.collect()
        alive = Alive(monkeypatch)
        options: dict[str, Any] = {"world": world, "state": {}, "identity": IDENTITY}
        save_checkpoint(tmp_path / "saved", 1, model=model, optimizer=optimizer, **options)
        assert alive.reads == 3 * len(list(model.parameters()))
        assert alive.most <= 2  # the one that is written, and the next as it replaces it
        gc.collect()
        alive.most, alive.reads = alive.now, 0
        model.save_pretrained(tmp_path / "model")
        assert alive.reads == len(list(model.parameters()))
        assert alive.most <= 2
    again = type(model).from_pretrained(tmp_path / "model")
    stored = load_file(tmp_path / "saved/step-1/model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in again.named_parameters())


def on_ranks(folder: str) -> None:
    with connect(device="cpu") as world:
        for first, second in (("everything", "none"), ("none", "everything")):
            plans = [Plan(model="bert", layout=each, when="deferred", parallel={"zero": 3}) for each in (first, second)]
            plans = [plan.reference() if plan.layout == "none" else plan for plan in plans]
            found = resumed(plans[0], plans[1], world, Path(folder) / first)
            assert not found, found


def test_two_ranks_resume_on_any_other_layout_bit_for_bit(tmp_path: Path) -> None:
    run_distributed(on_ranks, 2, str(tmp_path), timeout_s=240)
