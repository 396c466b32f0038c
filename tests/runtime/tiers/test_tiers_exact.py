"""Weights, moments, losses and gradient norms are those without tiers to the last bit, wherever values live."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from tier_runs import LAYOUTS, Came, Plan, run

from modelzoo.runtime import World, connect
from modelzoo.runtime.tiers.adamw import update_unit
from modelzoo.runtime.tiers.pieces import UPDATE_PIECE, Scratch
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.unit import Place, Unit, aligned, open_regions

FAMILIES = ("bert", "gpt2", "t5", "cpm1")
KNOWN: dict[str, Came] = {}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


def check(plan: Plan, world: World, folder: Path) -> None:
    """Compare with the same steps without tiers, which are taken once."""
    reference = plan.reference()
    if str(reference) not in KNOWN:
        KNOWN[str(reference)] = run(reference, world, folder)
    assert not run(plan, world, folder).difference(KNOWN[str(reference)]), str(plan)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layout_trains_as_no_tiers_do(family: str, world: World, tmp_path: Path) -> None:
    for layout in LAYOUTS if family == "gpt2" else ("moments", "gradients", "everything", "40%"):
        check(Plan(model=family, layout=layout), world, tmp_path)


@pytest.mark.parametrize("when", ["deferred", "in_backward"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_time_of_the_update_changes_nothing(family: str, when: str, world: World, tmp_path: Path) -> None:
    clip = None if when == "in_backward" else 0.1
    for layout in ("everything", "40%"):
        check(Plan(model=family, layout=layout, when=when, clip=clip), world, tmp_path)


@pytest.mark.parametrize(("family", "when"), [("bert", "step"), ("gpt2", "deferred"), ("t5", "step"), ("cpm1", "deferred")])
def test_gradients_of_four_micro_batches_are_added_on_disk_as_in_memory(
    family: str, when: str, world: World, tmp_path: Path
) -> None:
    check(Plan(model=family, layout="everything", when=when, accumulation=4), world, tmp_path)


@pytest.mark.parametrize("when", ["step", "deferred"])
def test_parameters_of_1_7_and_4097_values_are_updated_exactly(when: str, world: World, tmp_path: Path) -> None:
    for layout in ("moments", "gradients", "everything", "40%"):
        check(Plan(model="odd", layout=layout, when=when, accumulation=4), world, tmp_path)


VARIANTS = {
    "untied": {"tied": False},
    "frozen": {"frozen": True},
    "evaluated and generated from in the middle": {"looks_in_between": True},
    "of changing shapes": {"changes_shapes": True, "steps": 5},
    "recomputed": {"parallel": {"recompute": "blocks"}},
    "with many slots": {"slots": 5},
    "in bfloat16": {"parallel": {"precision": "bfloat16"}, "steps": 2},
    "placed as they come": {"how": "static", "layout": "40%"},
    "sharded": {"sharded": True},
    "sharded, recomputed, with room for some": {"sharded": True, "layout": "40%", "parallel": {"recompute": "blocks"}},
}


@pytest.mark.parametrize(("family", "variant"), [*zip(itertools.cycle(FAMILIES), [*VARIANTS, *reversed(VARIANTS)], strict=False)])
def test_variants_are_exact(family: str, variant: str, world: World, tmp_path: Path) -> None:
    check(replace(Plan(model=family, layout="everything", when="deferred", steps=4), **VARIANTS[variant]), world, tmp_path)


def on_ranks(folder: str, plans: list[Plan]) -> None:
    with connect(device="cpu") as world:
        for plan in plans:
            check(plan, world, Path(folder))


def test_two_ranks_at_every_zero_level_and_with_a_tensor_axis_are_exact(tmp_path: Path) -> None:
    plans = [
        Plan(model=family, layout=layout, when=when, accumulation=2, steps=2, parallel={"zero": zero, "recompute": recompute})
        for family, layout, when, zero, recompute in (
            ("gpt2", "everything", "deferred", 0, "none"),
            ("cpm1", "everything", "step", 1, "blocks"),
            ("t5", "40%", "deferred", 2, "none"),
            ("bert", "everything", "deferred", 3, "none"),
            ("odd", "everything", "step", 3, "none"),
        )
    ]
    plans.append(Plan(model="gpt2", layout="everything", when="deferred", parallel={"tensor": 2}))
    plans.append(Plan(model="bert", layout="everything", when="in_backward", clip=None, parallel={"zero": 3}, frozen=True))
    run_distributed(on_ranks, 2, str(tmp_path), plans, timeout_s=240)


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_parameter_larger_than_pieces_is_updated_as_a_whole_one(threads: int, tmp_path: Path) -> None:
    size = 3 * UPDATE_PIECE + 7
    lane = ThreadPoolExecutor(threads) if threads else None
    torch.manual_seed(0)
    parameter, gradient = torch.nn.Parameter(torch.randn(size)), torch.randn(size)
    other = torch.nn.Parameter(parameter.detach().clone())
    optimizer = torch.optim.AdamW([other], lr=1e-3, weight_decay=0.1, fused=True)
    homes = {"parameters": "memory", "exp_avg": "disk", "exp_avg_sq": "disk", "gradients": "memory"}
    unit = Unit("wide", torch.nn.Module(), (Place(parameter, 0, size, (size,)),), aligned(size), homes)
    file = open_regions(unit, tmp_path / "wide", DiskTraffic())
    assert file is not None
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    for step in (1, 2, 3):
        other.grad = gradient * step
        optimizer.step()
        update_unit(unit, {id(parameter): {**options, "step": step}}, None, {0: gradient * step}, Scratch(), lane)
    file.close()
    assert torch.equal(parameter, other)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["step", "deferred", "in_backward"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", [*FAMILIES, "odd"])
def test_twenty_steps_are_exact(family: str, layout: str, when: str, world: World, tmp_path: Path) -> None:
    for accumulation in (1, 4) if when != "in_backward" else (1,):
        clip = None if when == "in_backward" else 0.1
        plan = Plan(model=family, layout=layout, when=when, clip=clip, accumulation=accumulation, steps=20)
        check(plan, world, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "odd"])
def test_twenty_steps_on_two_ranks_are_exact(family: str, tmp_path: Path) -> None:
    plans = [
        Plan(model=family, layout=layout, when=when, accumulation=4, steps=20, parallel={"zero": zero})
        for layout, when, zero in itertools.product(("everything", "60%", "25%"), ("step", "deferred"), (0, 2, 3))
    ]
    run_distributed(on_ranks, 2, str(tmp_path), plans, timeout_s=900)
