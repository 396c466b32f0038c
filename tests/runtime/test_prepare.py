import pytest
import torch
from distributed import run_distributed
from tiny_model import adamw, build, step
from torch import nn
from torch.distributed.fsdp import FSDPModule

from modelzoo.errors import ConfigError
from modelzoo.runtime import clip_grad_norm, connect, full_state, model_tensors, prepare


def train_sharded(tied: bool) -> None:
    alone = build(tied)
    optimizer = adamw(alone)
    for seed in range(4):
        step(alone, optimizer, seed=seed)
    with connect(device="cpu") as world:
        model = prepare(build(tied), world)
        assert all(isinstance(block, FSDPModule) for block in model.blocks)
        optimizer = adamw(model)
        for seed in range(4):
            step(model, optimizer, world.rank, world.world_size, seed=seed)
        expected = model_tensors(alone)
        for name, tensor in full_state(model_tensors(model)):
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("world_size", "tied"), [(2, True), (3, False)])
def test_sharded_training_equals_one_process(world_size, tied):
    run_distributed(train_sharded, world_size, tied)


def test_one_process_is_left_plain():
    model = build()
    with connect(device="cpu") as world:
        assert prepare(model, world) is model
    assert not isinstance(model, FSDPModule)


def test_half_precision_parameters_are_refused():
    model = build().to(torch.bfloat16)
    with connect(device="cpu") as world, pytest.raises(ConfigError, match=r"embedding.weight: .* found torch.bfloat16"):
        prepare(model, world)


def test_declared_tie_of_two_tensors_is_refused():
    model = build(tied=False)
    model._tied = True
    with connect(device="cpu") as world, pytest.raises(ConfigError, match=r"embedding.weight and head.weight are declared tied"):
        prepare(model, world)


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
def test_clipping_is_that_of_torch(max_norm):
    ours, theirs = build(), build()
    for model in (ours, theirs):
        model(torch.arange(7)).square().sum().backward()
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or float("inf"))
    assert clip_grad_norm(ours.parameters(), max_norm) == float(expected)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-6, atol=0)


def test_non_finite_norm_scales_nothing():
    model = build()
    model(torch.arange(7)).square().sum().backward()
    model.head.bias.grad[0] = float("nan")
    before = model.blocks[0][0].weight.grad.clone()
    assert clip_grad_norm(model.parameters(), 0.1) != clip_grad_norm(model.parameters(), 0.1)
    assert torch.equal(model.blocks[0][0].weight.grad, before)


def test_no_gradients_have_no_norm():
    assert clip_grad_norm(build().parameters(), 1.0) == 0.0


class _Opaque:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(2, 2)

    def forward(self, hidden: torch.Tensor) -> _Opaque:
        return _Opaque(self.map(hidden))


def odd_output() -> None:
    with connect(device="cpu") as world:
        model = prepare(_Odd(), world)
        with pytest.raises(ConfigError, match=r"_Odd: its forward returned a _Opaque, in which no tensor is found"):
            model(torch.ones(1, 2))


def test_an_output_without_tensors_is_refused_before_gradients_part():
    run_distributed(odd_output, 2)
