import os
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from tiny_model import adamw, build, step

from modelzoo.errors import RankError, SaveError
from modelzoo.runtime import (
    Identity,
    connect,
    find_latest,
    full_state,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    prepare,
    read_manifest,
    save_checkpoint,
)
from modelzoo.runtime.checkpoints.reading import StateReader

IDENTITY = Identity("config", "data")


def save_on_ranks(folder: str) -> None:
    with connect(device="cpu") as world:
        model = prepare(build(), world)
        optimizer = adamw(model)
        for seed in range(3):
            step(model, optimizer, world.rank, world.world_size, seed=seed)
        save_checkpoint(Path(folder), 3, model=model, optimizer=optimizer, world=world, state={"position": 36}, identity=IDENTITY)


def load_and_save_on_ranks(source: str, target: str) -> None:
    """What is loaded on these ranks and saved again must be the same bytes, whatever number of ranks saved it."""
    with connect(device="cpu") as world:
        model = prepare(build(seed=7), world)
        optimizer = adamw(model)
        state = load_checkpoint(Path(source), model=model, optimizer=optimizer, world=world)
        assert state == {"position": 36}
        save_checkpoint(Path(target), 3, model=model, optimizer=optimizer, world=world, state=state, identity=IDENTITY)
        step(model, optimizer, world.rank, world.world_size, seed=3)
        alone = build(seed=8)
        fresh = adamw(alone)
        for seed in range(4):
            if seed == 3:
                one = world.__class__(0, 1, 0, world.device, 1)
                load_checkpoint(Path(source), model=alone, optimizer=fresh, world=one)
                step(alone, fresh, seed=seed)
        expected = model_tensors(alone)
        for name, tensor in full_state(model_tensors(model)):
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-6)
        moments = optimizer_tensors(alone, fresh)
        for name, tensor in full_state(optimizer_tensors(model, optimizer)):
            torch.testing.assert_close(tensor, moments[name], rtol=0, atol=1e-6)


def check_reshard(folder: Path, before: int, after: int) -> None:
    run_distributed(save_on_ranks, before, str(folder / "saved"))
    source, target = folder / "saved" / "step-3", folder / "again"
    run_distributed(load_and_save_on_ranks, after, str(source), str(target))
    ours, theirs = whole_state(target / "step-3"), whole_state(source)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_checkpoint_resumes_at_another_number_of_ranks(tmp_path, before, after):
    check_reshard(tmp_path, before, after)


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_checkpoint_resumes_at_any_number_of_ranks(tmp_path, before, after):
    check_reshard(tmp_path, before, after)


def whole_state(path: Path) -> dict[str, torch.Tensor]:
    """Model and optimizer, put together from whatever files hold them."""
    reader = StateReader(path, read_manifest(path))
    return {f"{kind}/{name}": reader.read(kind, name) for kind in ("model", "optimizer") for name in reader.specs(kind)}


def save_fails_on_ranks(folder: str) -> None:
    with connect(device="cpu", timeout_s=4) as world:
        model = prepare(build(), world)
        options = {"model": model, "optimizer": None, "world": world, "state": {}, "identity": IDENTITY}
        (Path(folder) / "step-1").mkdir(parents=True, exist_ok=True)
        with pytest.raises(SaveError, match=r"^rank 0: .*step-1: exists already"):
            save_checkpoint(Path(folder), 1, **options)
        with pytest.raises(RankError, match="saved step: rank 0 has 2, rank 1 has 3; expected the same"):
            save_checkpoint(Path(folder), 2 + world.rank, **options)
        save_checkpoint(Path(folder), 4, **options)


def test_failed_save_is_told_to_all_ranks_and_the_next_one_works(tmp_path):
    run_distributed(save_fails_on_ranks, 2, str(tmp_path))
    assert find_latest(tmp_path).manifest.step == 4


def save_on_rank_zero_only(folder: str) -> None:
    with connect(device="cpu", timeout_s=2) as world:
        model = prepare(build(), world)
        if world.is_main:
            with pytest.raises(RankError, match="the save of step 1 is for all ranks: rank 1 did not come within 2 s"):
                save_checkpoint(Path(folder), 1, model=model, optimizer=None, world=world, state={}, identity=IDENTITY)
            os._exit(0)
        import time

        time.sleep(4)
        os._exit(0)


def test_save_on_one_rank_only_is_an_error_not_a_hang(tmp_path):
    run_distributed(save_on_rank_zero_only, 2, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
