"""Every layout trains as one plain process does: losses, gradient norms and parameters after AdamW steps with clipping."""

import itertools
import traceback
from collections.abc import Iterator

import pytest
from distributed import run_distributed
from grid import MODELS, Point, difference, train_alone, train_laid_out

from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime import connect

RECOMPUTE = ("none", "blocks", "selective", "every 2")
LAYOUTS = {
    1: [{}],
    2: [{}, {"tensor": 2}],
    3: [{}],
    4: [{}, {"tensor": 2}, {"data_replicate": 2}, {"tensor": 4}],
}
"""Axes by the number of ranks; what they leave is data_shard."""


def product(world_size: int) -> Iterator[tuple[ParallelConfig, int]]:
    """Return every layout and number of micro-batches."""
    for zero, axes, recompute, accumulation in itertools.product(range(4), LAYOUTS[world_size], RECOMPUTE, (1, 3)):
        yield ParallelConfig(zero=zero, recompute=recompute, **axes), accumulation


def full_grid(world_size: int, zero: int) -> list[Point]:
    return [Point(*model, *layout) for layout in product(world_size) if layout[0].zero == zero for model in MODELS]


def small_grid(world_size: int) -> list[Point]:
    """Every level on every axes, with models, ways to recompute and numbers of micro-batches in turn.

    Where the tensor axis takes all ranks a level has nothing to shard, and the first and the last stand for all.
    """
    models = itertools.cycle(MODELS[1:] + MODELS[:1])  # so that each family comes to a tensor axis
    recompute, accumulation = itertools.cycle(RECOMPUTE), itertools.cycle((1, 3, 3, 1, 1))
    rounds = max(4 // world_size, 1)
    return [
        Point(*next(models), ParallelConfig(zero=zero, recompute=next(recompute), **axes), next(accumulation))
        for zero, axes, _ in itertools.product(range(4), LAYOUTS[world_size], range(rounds))
        if zero in (0, 3) or axes.get("tensor") != world_size
    ]


def compare(points: list[Point], steps: int, tolerance: float) -> None:
    problems = []
    with connect(180, device="cpu") as world:
        for point in points:
            try:
                found = difference(train_laid_out(point, world, steps), train_alone(point.model, point.tied, steps), tolerance)
            except Exception:
                found = traceback.format_exc(limit=-4)
            if found:
                problems.append(f"{point}: {found}")
            world.tensor_size = 1
    assert not problems, f"{len(problems)} of {len(points)}\n" + "\n".join(problems)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_layout_trains_as_one_process(world_size: int) -> None:
    run_distributed(compare, world_size, small_grid(world_size), 4, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_model_on_every_layout_trains_as_one_process(world_size: int, zero: int) -> None:
    run_distributed(compare, world_size, full_grid(world_size, zero), 4, 1e-6, timeout_s=3600)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_two_hundred_steps_do_not_drift(world_size: int) -> None:
    points = [
        Point(*model, ParallelConfig(zero=zero, recompute=recompute, **axes), accumulation)
        for model, zero, recompute, axes, accumulation in (
            (("bert", True), 3, "blocks", {}, 3),
            (("gpt2", True), 1, "none", {}, 1),
            (("t5_smooth", False), 2, "selective", {"tensor": 2}, 3),
            (("cpm1", True), 3, "none", {"tensor": 2}, 1),
            (("llama", False), 0, "every 2", {"data_replicate": 2}, 3),
        )
    ]
    run_distributed(compare, world_size, points, 200, 1e-5, timeout_s=900)
