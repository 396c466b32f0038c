"""What `auto` decides, and layouts that do not fit: refused with both values, before anything is changed."""

import re

import pytest
import torch
from distributed import run_distributed
from torch import nn

from modelzoo.config.parallel import ParallelConfig, recomputed
from modelzoo.errors import ConfigError
from modelzoo.layers import AlibiBias, Attention, Embedding, FeedForward
from modelzoo.runtime import World, axes, connect, find_units, prepare, prepared
from modelzoo.runtime.axes import resolve

LINEAR = nn.Linear(100, 100)
STATES = 16 * 10_100
"""Bytes of its parameters, gradients and two moments."""


def world_of(size: int, monkeypatch: pytest.MonkeyPatch, free: int = 2**40) -> World:
    monkeypatch.setattr(axes, "free_bytes", lambda device: free)
    world = World(0, size, 0, torch.device("cpu"), 60)
    world.gather = lambda value: [value] * size
    return world


def resolved(monkeypatch: pytest.MonkeyPatch, size: int, free: int = 2**40, **options: object) -> tuple[object, ...]:
    found = resolve(ParallelConfig(**options), world_of(size, monkeypatch, free), LINEAR)
    return found.data_replicate, found.data_shard, found.tensor, found.zero


def test_auto_takes_what_the_other_axes_leave(monkeypatch):
    assert resolved(monkeypatch, 1) == (1, 1, 1, 0)
    assert resolved(monkeypatch, 4) == (1, 4, 1, 2)
    assert resolved(monkeypatch, 8, tensor=2) == (1, 4, 2, 2)
    assert resolved(monkeypatch, 8, tensor=2, data_replicate=2) == (2, 2, 2, 2)
    assert resolved(monkeypatch, 8, zero=3, data_shard=8) == (1, 8, 1, 3)
    assert resolved(monkeypatch, 6, zero=0) == (6, 1, 1, 0)
    assert resolved(monkeypatch, 6, zero=0, tensor=2) == (3, 1, 2, 0)
    assert resolved(monkeypatch, 4, data_replicate=4) == (4, 1, 1, 2)
    assert resolved(monkeypatch, 1, zero=3) == (1, 1, 1, 3)


def test_auto_cuts_parameters_where_memory_is_short(monkeypatch):
    assert resolved(monkeypatch, 2, free=2 * STATES)[-1] == 2
    assert resolved(monkeypatch, 2, free=2 * STATES - 2)[-1] == 3
    assert resolved(monkeypatch, 2, free=0)[-1] == 3
    assert resolved(monkeypatch, 2, free=0, zero=1)[-1] == 1, "what was asked for is not changed"


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (4, {"tensor": 3}, "tensor=3 x parallel.data_replicate=1 = 3 does not divide the 4 processes of this run"),
        (6, {"tensor": 2, "data_replicate": 2}, "tensor=2 x parallel.data_replicate=2 = 4 does not divide the 6 processes"),
        (1, {"tensor": 2}, "= 2 does not divide the 1 process of this run; start a multiple of 2"),
        (4, {"data_shard": 2}, "parallel.data_shard=2 is not the 4 processes of this run; use parallel.data_shard=4 or auto"),
        (8, {"data_shard": 8, "tensor": 2}, "data_shard=8 is not the 8 processes of this run; use parallel.data_shard=4 or auto"),
        (4, {"zero": 0, "data_shard": 4}, "parallel.zero=0 cuts nothing, found parallel.data_shard=4; remove one of the two"),
    ],
)
def test_axes_that_do_not_fit_the_ranks_are_refused(monkeypatch, size, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolved(monkeypatch, size, **options)


def test_recomputation_that_nobody_has_decided_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"parallel.recompute=auto is decided by a plan, .*`modelzoo train` makes one"):
        resolved(monkeypatch, 1, recompute="auto")


def test_which_blocks_are_computed_again():
    assert recomputed("none", 3) == recomputed("auto", 3) == (False, False, False)
    assert recomputed("blocks", 2) == recomputed("selective", 2) == (True, True)
    assert recomputed("first 2", 4) == (True, True, False, False)
    assert recomputed("first 9", 2) == (True, True)
    assert recomputed("every 2", 5) == (False, True, False, True, False)


@pytest.mark.parametrize("value", ["every 0", "every", "all", "every 1.5", "first 0", "first"])
def test_ways_to_recompute_that_do_not_exist_are_refused(value):
    with pytest.raises(ValueError, match=re.escape(f'blocks, selective, "first N" or "every N" with N >= 1, found {value!r}')):
        ParallelConfig(recompute=value)


def unequal_memory() -> None:
    with connect(device="cpu") as world:
        axes.free_bytes = lambda device: 0 if world.rank == 1 else 2**40
        model = prepare(nn.Linear(8, 8), world)
        assert prepared(model).config.zero == 3
        axes.free_bytes = lambda device: 2**40
        assert prepared(prepare(nn.Linear(8, 8), world)).config.zero == 2


def test_all_ranks_decide_by_the_one_with_the_least_memory():
    run_distributed(unequal_memory, 2)


class Odd(nn.Module):
    """Three things that two ranks cannot share."""

    def __init__(self) -> None:
        super().__init__()
        self.token = Embedding(7, 9)
        self.attention = Attention(9, 3)
        self.feed_forward = FeedForward(9, 5)
        self.position = AlibiBias(3)


def refused() -> None:
    with connect(device="cpu") as world:
        model = Odd()
        parameters, forwards = dict(model.named_parameters()), [module.forward for module in model.modules()]
        with pytest.raises(ConfigError) as error:
            prepare(model, world, ParallelConfig(tensor=2))
        first, *lines = str(error.value).splitlines()
        assert first == "parallel.tensor=2 does not fit the model, nothing was cut:"
        maps = [("attention", name, 9) for name in ("query", "key", "value", "output")]
        maps += [("feed_forward", name, 5) for name in ("up", "down")]
        assert sorted(lines) == sorted(
            [
                "  attention: num_heads=3 is not divisible by parallel.tensor=2",
                "  position: AlibiBias has no table of heads to cut; it cannot be used with parallel.tensor",
                *(f"  {a}.{b}.weight: {width} features are not divisible by parallel.tensor=2" for a, b, width in maps),
            ]
        )
        assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
        assert [module.forward for module in model.modules()] == forwards
        assert (model.attention.num_heads, world.tensor_size) == (3, 1)
        prepare(model, world, ParallelConfig(zero=3))


def test_everything_that_cannot_be_cut_is_listed_and_nothing_is_changed():
    run_distributed(refused, 2)


def test_units_without_parameters_are_no_units():
    assert find_units(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(2, 2))) == []
