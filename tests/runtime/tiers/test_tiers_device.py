"""Tiers below an accelerator, here a pretended one: host and disk under a memory of its own, exact to the last bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import run_distributed
from test_tiers_exact import FAMILIES, check
from tier_runs import HOMES_BELOW, Plan, batch, laid_out, take

from modelzoo.config.memory import MemoryConfig
from modelzoo.errors import ConfigError
from modelzoo.runtime import World, connect, report
from modelzoo.runtime.tiers import Sizes
from modelzoo.runtime.tiers.device_placement import HOST_SCRATCH_BYTES, place_below_device
from modelzoo.runtime.tiers.timeline import Timeline
from modelzoo.runtime.tiers.timeline_text import timeline_lines

OPTIONS = {"slots": 3, "how": "plan", "when": "deferred"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


@pytest.mark.parametrize("family", FAMILIES)
def test_every_home_below_a_device_trains_as_no_tiers_do(family: str, world: World, tmp_path: Path) -> None:
    for layout in HOMES_BELOW if family == "gpt2" else ("host", "parameters in host, moments on disk"):
        check(Plan(model=family, layout=layout, below_device=True), world, tmp_path)


@pytest.mark.parametrize("layout", ["100% 100%", "60% 100%", "60% 40%", "0% 100%", "0% 50%", "0% 0%"])
@pytest.mark.parametrize("when", ["step", "deferred", "in_backward"])
def test_every_budget_trains_as_no_tiers_do(layout: str, when: str, world: World, tmp_path: Path) -> None:
    plan = Plan(layout=layout, when=when, clip=None if when == "in_backward" else 0.1, below_device=True)
    check(plan, world, tmp_path)


VARIANTS = {
    "of four micro-batches": {"accumulation": 4},
    "untied": {"tied": False},
    "frozen": {"frozen": True},
    "evaluated and generated from in the middle": {"looks_in_between": True},
    "of changing shapes": {"changes_shapes": True, "steps": 5},
    "recomputed": {"parallel": {"recompute": "blocks"}},
    "placed as they come": {"how": "static"},
    "of odd sizes": {"model": "odd", "accumulation": 4},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_exact(variant: str, world: World, tmp_path: Path) -> None:
    plan = replace(Plan(when="deferred", steps=4, below_device=True), **VARIANTS[variant])
    for layout in ("host", "disk", "30% 50%"):
        check(replace(plan, layout=layout), world, tmp_path)


def on_ranks(folder: str) -> None:
    with connect(device="cpu") as world:
        for layout, when in (("host", "deferred"), ("40% 50%", "step")):
            check(Plan(layout=layout, when=when, accumulation=2, steps=2, below_device=True), world, Path(folder))


def test_two_ranks_are_exact(tmp_path: Path) -> None:
    run_distributed(on_ranks, 2, str(tmp_path))


@pytest.mark.parametrize("when", ["deferred", "in_backward", "step"])
def test_a_step_copies_each_unit_up_for_the_forward_and_the_backward_and_its_gradients_down(
    when: str, world: World, tmp_path: Path
) -> None:
    plan = Plan(layout="0% 100%", when=when, clip=None, below_device=True)
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        assert tiers is not None
        assert all(home == "host" for unit in tiers.units for kind, home in unit.homes.items() if kind != "gradients")
        take(model, optimizer, plan, world, 0)
        tiers.flush()
        before = tiers.link.to_device_bytes, tiers.link.to_host_bytes
        for step in range(1, 3):
            take(model, optimizer, plan, world, step)
        tiers.flush()
        up, down = ((after - start) // 2 for after, start in zip(link_bytes(tiers), before, strict=True))
        parameters = sum(4 * place.numel for unit in tiers.units for place in unit.places)
        blocks = [unit for unit in tiers.units if unit.module is not model]
        whole = sum(4 * unit.elements * (2 if unit in blocks else 1) for unit in tiers.units)
        # what is still in a slot is not copied again; a fetch ahead that nobody used is copied all the same
        assert sum(4 * unit.elements for unit in tiers.units) <= up <= whole + 4 * blocks[-1].elements
        assert down == parameters
        assert tiers.placement.bus_bytes == whole + sum(4 * unit.elements for unit in tiers.units)


def link_bytes(tiers: object) -> tuple[int, int]:
    return tiers.link.to_device_bytes, tiers.link.to_host_bytes  # type: ignore[attr-defined]


@pytest.mark.parametrize(("layout", "when"), [("0% 0%", "deferred"), ("50% 50%", "step"), ("30% 100%", "in_backward")])
def test_no_tier_holds_more_than_was_planned(layout: str, when: str, world: World, tmp_path: Path) -> None:
    plan = Plan(layout=layout, when=when, clip=None, accumulation=1 if when == "in_backward" else 2, below_device=True)
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        assert tiers is not None
        for step in range(3):
            take(model, optimizer, plan, world, step)
        tiers.resident()
        assert tiers.ledger.peak.total <= tiers.placement.memory_bytes
        assert 0 < tiers.ledger.host_peak <= tiers.placement.host_bytes + HOST_SCRATCH_BYTES
        assert tiers.ledger.peak.scratch == 0
        assert len(batch(plan, 0, world)) > 0


def test_the_picture_and_the_report_show_three_tiers(world: World, tmp_path: Path) -> None:
    plan = Plan(layout="parameters in host, moments on disk", when="deferred", below_device=True)
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        assert tiers is not None
        recorded = Timeline(model, tiers, optimizer)
        for step in range(3):
            take(model, optimizer, plan, world, step)
        for step in recorded.complete:
            assert [*step.peak.resident] == ["device", "host", "disk"]
            assert step.peak.here["slots"] == tiers.ring.slots.size_bytes
            assert step.peak.here["parameters"] == step.peak.here["moments"] == 0
            size = sum(4 * unit.elements for unit in tiers.units)
            assert (step.peak.resident["host"]["parameters"], step.peak.resident["disk"]["moments"]) == (size, 2 * size)
        # what is fetched ahead between two steps is in neither
        assert 0 < sum(step.traffic["host>device"] for step in recorded.complete) <= tiers.link.to_device_bytes
        found = report(model, optimizer).tiers
        assert found is not None
        assert found.host_bytes == tiers.ledger.host_peak > 0
        text = str(report(model, optimizer))
        assert "host>device" in text
        assert "host     " in text
        assert "fullest" in "".join(timeline_lines(recorded))


UNITS = [Sizes(f"block {number}", 4096, 4096, 4096, True) for number in range(4)] + [Sizes("(rest)", 8192, 8192, 8192, False)]
FROZEN = [replace(unit, trained=0) if number < 2 else unit for number, unit in enumerate(UNITS)]


def test_a_device_that_has_the_room_keeps_everything() -> None:
    found = place_below_device(UNITS, device_bytes=2**30, host_bytes=0, has_disk=False, **OPTIONS)
    assert {home for homes in found.homes for home in homes.values()} == {"memory"}
    assert (found.bus_bytes, found.host_bytes, found.disk_bytes) == (0, 0, 0)


def test_blocks_that_the_backward_needs_first_stay_and_frozen_ones_before_all() -> None:
    options = {"host_bytes": None, "has_disk": False, **OPTIONS}
    smallest = place_below_device(UNITS, device_bytes=None, **options).smallest_bytes
    found = place_below_device(UNITS, device_bytes=smallest + 4 * 4 * 4096, **options)
    assert [homes["parameters"] for homes in found.homes] == ["host", "host", "host", "memory", "host"]
    # two frozen blocks take two of the eight values of a trained one
    found = place_below_device(FROZEN, device_bytes=smallest + 2 * 4 * 4096, **options)
    assert [homes["parameters"] for homes in found.homes] == ["memory", "memory", "host", "host", "host"]


@pytest.mark.parametrize(
    ("device", "host", "has_disk", "message"),
    [
        (1000, None, True, r"memory.device: .* is too small: expected at least"),
        (None, 1000, True, r"memory.host: .* is too small for what is below the device: expected at least"),
        (None, HOST_SCRATCH_BYTES, False, r"memory.host: .* or give memory.disk.path"),
    ],
)
def test_a_budget_that_is_too_small_is_refused_with_the_smallest(
    device: int | None, host: int | None, has_disk: bool, message: str
) -> None:
    smallest = place_below_device(UNITS, device_bytes=None, host_bytes=None, has_disk=False, **OPTIONS).smallest_bytes
    with pytest.raises(ConfigError, match=message) as refused:
        place_below_device(UNITS, device_bytes=device or smallest, host_bytes=host, has_disk=has_disk, **OPTIONS)
    said = int(str(refused.value).split("(")[1].split(" bytes")[0])
    device_bytes, host_bytes = (said, None) if host is None else (smallest, said)
    place_below_device(UNITS, device_bytes=device_bytes, host_bytes=host_bytes, has_disk=has_disk, **OPTIONS)
    with pytest.raises(ConfigError):
        place_below_device(
            UNITS,
            device_bytes=device_bytes - (host is None),
            host_bytes=None if host_bytes is None else host_bytes - 1,
            has_disk=has_disk,
            **OPTIONS,
        )


def test_activations_below_a_device_are_refused_by_name(world: World, tmp_path: Path) -> None:
    plan = Plan(layout="host", activations="offload", below_device=True, parallel={"recompute": "blocks"})
    with pytest.raises(ConfigError, match="on an accelerator use keep"), laid_out(plan, world, tmp_path):
        pass
    assert MemoryConfig(device="1GiB").is_used
