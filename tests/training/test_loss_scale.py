"""Loss scaling of float16 runs: it grows, it halves and skips on all ranks together, and it survives a checkpoint."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from torch import Tensor, nn

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import NonFiniteError
from modelzoo.models.model import ModelOutput
from modelzoo.runtime import connect, full_tensor, prepare
from modelzoo.training.loop_state import LoopState
from modelzoo.training.loss_scale import LARGEST, LossScale
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.step import MicroBatch, StepResult, take_step


def test_it_doubles_after_enough_good_steps_up_to_a_limit():
    scale = LossScale(2.0**22, growth_interval=3)
    seen = []
    for _ in range(9):
        scale.step_was_taken()
        seen.append((scale.scale, scale.good_steps))
    assert seen[:4] == [(2.0**22, 1), (2.0**22, 2), (2.0**23, 0), (2.0**23, 1)]
    assert seen[-1] == (LARGEST, 0)
    scale.step_was_taken()
    assert scale.scale == LARGEST


def test_it_halves_and_counts_again_and_ends_at_one():
    scale = LossScale(4.0, growth_interval=5, good_steps=3)
    assert scale.step_overflowed()
    assert (scale.scale, scale.good_steps) == (2.0, 0)
    assert scale.step_overflowed()
    assert not scale.step_overflowed()
    assert scale.scale == 1.0


def test_its_start_and_growth_are_those_of_torch():
    theirs = torch.amp.GradScaler("cpu")
    assert LossScale().scale == theirs.get_scale()
    assert LossScale().growth_interval == theirs.get_growth_interval()
    ours = LossScale(growth_interval=2)
    theirs = torch.amp.GradScaler("cpu", growth_interval=2)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for factor in (1.0, 1.0, math.inf, 1.0, math.inf, 1.0, 1.0, 1.0):
        theirs.scale(weight.sum()).backward()
        weight.grad *= factor
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        if math.isfinite(factor):
            ours.step_was_taken()
        else:
            assert ours.step_overflowed()
        assert ours.scale == theirs.get_scale()


@pytest.mark.parametrize("scale", [LossScale(256.0, 2000, 17), LossScale(1.0), LossScale()])
def test_it_is_saved_and_restored_to_the_bit(scale):
    state = LoopState(step=3, loss_scale=scale)
    found = LoopState.from_json(json.loads(json.dumps(state.to_json())))
    assert asdict(found.loss_scale) == asdict(scale)


class Steep(nn.Module):
    """A loss whose slope is given with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, slope: Tensor) -> ModelOutput:
        return ModelOutput(loss=(self.weight * slope.to(self.weight.dtype)).mean().float(), logits=self.weight)


def one_step(model, optimizer, world, slope: float, scale: LossScale | None, step: int = 1) -> StepResult:
    batch = MicroBatch({"slope": torch.tensor(slope)}, (world.rank,), 1, 1)
    return take_step(
        model, optimizer, [batch], num_targets=world.world_size, clip_norm=1.0, world=world, step=step, loss_scale=scale
    )


def overflow_on_one_rank() -> None:
    with connect(device="cpu") as world:
        for zero in range(4):
            model = prepare(Steep(), world, ParallelConfig(precision="float16", zero=zero))
            optimizer = build_optimizer(model, lr=0.1)
            scale = LossScale(2.0**10, growth_interval=2)
            before = full_tensor(model.weight.detach()).clone()
            slope = 1000.0 if world.rank == world.world_size - 1 else 0.01  # 1000 / 6 * 1024 is no float16
            skipped = one_step(model, optimizer, world, slope, scale)
            assert not skipped.is_taken
            assert math.isfinite(skipped.loss)
            assert scale == LossScale(2.0**9, 2, 0)
            assert not optimizer.state, "moments of a step that was not taken"
            assert model.weight.grad is None
            assert torch.equal(full_tensor(model.weight.detach()), before)
            for _ in range(2):
                assert one_step(model, optimizer, world, 0.01, scale).is_taken
            assert scale == LossScale(2.0**10, 2, 0)
            assert not torch.equal(full_tensor(model.weight.detach()), before)
            assert len(set(world.gather((scale.scale, scale.good_steps)))) == 1


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_overflow_on_one_rank_skips_the_step_on_all(world_size):
    run_distributed(overflow_on_one_rank, world_size)


def no_scale_left() -> None:
    with connect(device="cpu") as world:
        model = prepare(Steep(), world, ParallelConfig(precision="float16"))
        optimizer = build_optimizer(model, lr=0.1)
        scale = LossScale(1.0)
        with pytest.raises(NonFiniteError, match=r"step 7: loss .*: expected finite numbers; the step was not taken"):
            one_step(model, optimizer, world, 60000.0 if world.rank else math.inf, scale, step=7)
        assert scale == LossScale(1.0)


def test_an_overflow_at_scale_one_is_an_error():
    run_distributed(no_scale_left, 2)


def gradients_do_not_vanish() -> None:
    with connect(device="cpu") as world:
        found = {}
        for name, scale in (("none", None), ("scaled", LossScale(2.0**14))):
            model = prepare(Steep(), world, ParallelConfig(precision="float16"))
            found[name] = one_step(model, build_optimizer(model, lr=0.0), world, 2.0**-24, scale).grad_norm
        assert found["none"] == 0.0, "too small for float16"
        assert found["scaled"] == pytest.approx(2.0**-24 / 6 * 6**0.5, rel=1e-2)


def test_small_gradients_live_by_the_scale():
    run_distributed(gradients_do_not_vanish, 1)


def test_the_scale_is_in_a_runs_checkpoint(tmp_path: Path):
    text = json.dumps(LoopState(loss_scale=LossScale(2.0**7, 2000, 5)).to_json())
    assert json.loads(text)["loss_scale"] == {"scale": 128.0, "growth_interval": 2000, "good_steps": 5}
