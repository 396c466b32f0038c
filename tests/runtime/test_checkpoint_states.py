"""States at the edge: nothing trained yet, frozen since, more ranks than before, a rank that disagrees."""

import logging
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from saved_models import IDENTITY, assert_same, save, trained
from tiny_model import adamw, build, step

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import CheckpointError, RankError, SaveError
from modelzoo.runtime import (
    Identity,
    connect,
    find_latest,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    prepare,
    read_manifest,
    retain,
    save_checkpoint,
    seed_everything,
    step_folders,
)


@pytest.fixture
def world():
    with connect(device="cpu") as one:
        yield one


def frozen_since(seed=3):
    """A model whose head's bias is not trained any more, and the optimizer of the rest."""
    model = build(seed=seed)
    model.head.bias.requires_grad_(False)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, fused=True)


def test_moments_of_a_parameter_frozen_since_are_kept_and_named(tmp_path, world, caplog):
    model, optimizer = trained()
    saved = save(tmp_path, 2, world, model, optimizer)
    other, fresh = frozen_since()
    with caplog.at_level(logging.WARNING, "modelzoo"):
        load_checkpoint(saved, model=other, optimizer=fresh, world=world)
    assert "moments of 1 parameters that are frozen now are kept: head.bias" in caplog.text
    assert_same(optimizer_tensors(other, fresh), optimizer_tensors(model, optimizer))
    step(other, fresh, seed=5)
    assert torch.equal(other.head.bias, model.head.bias)
    again = save(tmp_path, 3, world, other, fresh)
    third, whole = trained(0)
    load_checkpoint(again, model=third, optimizer=whole, world=world)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        assert torch.equal(whole.state[third.head.bias][name], optimizer.state[model.head.bias][name])


def test_parameter_frozen_within_the_optimizer_keeps_its_moments(tmp_path, world):
    model, optimizer = trained()
    model.head.bias.requires_grad_(False)
    step(model, optimizer, seed=7)
    saved = save(tmp_path, 3, world, model, optimizer)
    other, fresh = trained(0)
    load_checkpoint(saved, model=other, optimizer=fresh, world=world)
    assert_same(optimizer_tensors(other, fresh), optimizer_tensors(model, optimizer))


def test_nothing_is_changed_when_only_the_optimizer_does_not_fit(tmp_path, world):
    model, optimizer = trained()
    optimizer.state[model.head.bias]["exp_avg"] = torch.zeros(3)
    saved = save(tmp_path, 2, world, model, optimizer)
    other, fresh = trained(1, seed=5)
    before = [
        {name: tensor.clone() for name, tensor in some.items()} for some in (model_tensors(other), optimizer_tensors(other, fresh))
    ]
    with pytest.raises(
        CheckpointError, match=r"nothing was loaded:\n.*optimizer/exp_avg/head.bias: expected shape \[7\], found \[3\]"
    ):
        load_checkpoint(saved, model=other, optimizer=fresh, world=world)
    assert_same(model_tensors(other), before[0])
    assert_same(optimizer_tensors(other, fresh), before[1])


def test_dtype_that_cannot_be_stored_is_refused_by_name(tmp_path, world):
    model = build()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(SaveError, match=r"model/phase: torch.complex64 cannot be stored; expected one of torch.float64"):
        save(tmp_path, 1, world, model, adamw(model))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "no manifest", "no model", "empty"])
@pytest.mark.parametrize("keep_last", [1, 2])
def test_retention_never_removes_the_last_good_one(tmp_path, world, damage, keep_last, record_property):
    models = {number: trained(number) for number in range(1, 5)}
    for number in (1, 2, 3):
        save(tmp_path, number, world, *models[number])
        retain(tmp_path, keep_last)
    newest = tmp_path / "step-3"
    content = (newest / "model.safetensors").read_bytes()
    if damage in ("cut", "flipped"):
        (newest / "model.safetensors").write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "empty":
        for path in newest.iterdir():
            path.unlink()
    else:
        (newest / {"no manifest": "manifest.json", "no model": "model.safetensors"}[damage]).unlink()
    retain(tmp_path, keep_last)
    found = find_latest(tmp_path)
    assert found.manifest.step == 2
    assert len(found.skipped) == 1
    assert str(newest) in found.skipped[0]
    save(tmp_path, 4, world, *models[4])
    retain(tmp_path, keep_last)
    assert find_latest(tmp_path).manifest.step == 4
    record_property("damaged newest", 1)


def test_retention_that_cannot_remove_goes_on(tmp_path, world, monkeypatch, caplog):
    from modelzoo.runtime.checkpoints import retention

    for number in (1, 2, 3):
        save(tmp_path, number, world, *trained(number))
    monkeypatch.setattr(retention, "remove_folder", refuse)
    assert retain(tmp_path, 2) == []
    assert "step-1: an old checkpoint cannot be removed: Permission denied" in caplog.text
    assert len(step_folders(tmp_path)) == 3


def refuse(path):
    raise PermissionError(13, "Permission denied")


def test_run_with_damaged_checkpoints_only_is_not_begun_again(tmp_path, world):
    for number in (1, 2):
        (save(tmp_path, number, world, *trained(number)) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError) as raised:
        find_latest(tmp_path, world)
    text = str(raised.value)
    assert text.startswith(f"{tmp_path}: none of its checkpoints can be used; put one back, or start a new run")
    assert all(f"step-{number}/model.safetensors: expected " in text for number in (1, 2))


def generators_of_ranks(folder: str, tensor: int) -> None:
    """Save, with draws of each rank after it written down."""
    with connect(device="cpu") as world:
        model = prepare(build(), world, ParallelConfig(tensor=tensor) if tensor > 1 else None)
        seed_everything(100 + world.data_rank)
        torch.rand(5)
        save_checkpoint(Path(folder), 1, model=model, optimizer=None, world=world, state={}, identity=IDENTITY)
        (Path(folder) / f"draws-{world.world_size}-{world.rank}").write_text(str(torch.rand(3).tolist()))


def resumed_generators(folder: str) -> None:
    with connect(device="cpu") as world:
        model = prepare(build(seed=1), world)
        seed_everything(0)
        load_checkpoint(Path(folder) / "step-1", model=model, optimizer=None, world=world)
        draws = str(torch.rand(3).tolist())
        known = Path(folder) / f"draws-2-{world.rank}"
        every = world.gather(draws)
        assert len(set(every)) == world.world_size, "ranks draw alike"
        if known.exists():
            assert draws == known.read_text()
        else:
            begun = torch.Generator().manual_seed(100 + world.data_rank)
            own = [str(torch.rand(3, generator=begun).tolist()) for _ in range(3)]
            assert draws not in own, "a rank that is there again repeats its first draws"
            (Path(folder) / f"new-{world.rank}-{len(list(Path(folder).glob(f'new-{world.rank}-*')))}").write_text(draws)


def test_generators_of_old_ranks_go_on_and_new_ranks_get_their_own(tmp_path):
    run_distributed(generators_of_ranks, 2, str(tmp_path), 1)
    for _ in range(2):
        run_distributed(resumed_generators, 3, str(tmp_path))
    first, second = (path.read_text() for path in sorted(tmp_path.glob("new-2-*")))
    assert first == second, "the same resume twice draws differently"


def disagree(folder: str) -> None:
    """Each thing in which a rank may differ is named, and nothing is written."""
    with connect(device="cpu", timeout_s=20) as world:
        model = build()
        optimizer = adamw(model)
        step(model, optimizer)
        is_odd = world.rank == 1
        options = {"optimizer": None, "world": world, "state": {}}
        place = Path(folder)
        with pytest.raises(RankError, match="saved config: rank 0 has config, rank 1 has other; expected the same"):
            save_checkpoint(place, 1, model=model, identity=Identity("other" if is_odd else "config", "data"), **options)
        with pytest.raises(RankError, match="saved data: rank 0 has data, rank 1 has rows"):
            save_checkpoint(place, 1, model=model, identity=Identity("config", "rows" if is_odd else "data"), **options)
        wide = build()
        if is_odd:
            wide.extra = torch.nn.Parameter(torch.zeros(2))
        with pytest.raises(RankError, match=r"model/extra: rank 0 has none, rank 1 has float32 \[2\]; expected the same tensors"):
            save_checkpoint(place, 1, model=wide, identity=IDENTITY, **options)
        half = build()
        if is_odd:
            half.head.bias.data = half.head.bias.data.bfloat16()
        with pytest.raises(RankError, match=r"model/head.bias: rank 0 has float32 \[7\], rank 1 has bfloat16 \[7\]"):
            save_checkpoint(place, 1, model=half, identity=IDENTITY, **options)
        options["optimizer"] = adamw(model) if is_odd else optimizer
        with pytest.raises(RankError, match=r"optimizer/step/embedding.weight: rank 0 has float32 \[\], rank 1 has none"):
            save_checkpoint(place, 1, model=model, identity=IDENTITY, **options)
        assert not list(place.iterdir())
        options["optimizer"] = optimizer
        path = save_checkpoint(place, 1, model=model, identity=IDENTITY, **options)
        sizes = [sum(file.stat().st_size for file in path.glob(f"*-{rank}-of-2.safetensors")) for rank in (0, 1)]
        assert max(sizes) < 1.3 * min(sizes), "what all ranks hold alike is written by them in equal parts"
        manifest = read_manifest(path)
        assert all(len(stored.parts) == 1 for stored in manifest.tensors.values())


def test_ranks_that_disagree_are_told_in_what_before_anything_is_written(tmp_path):
    run_distributed(disagree, 2, str(tmp_path))


def test_checkpoint_of_another_version_is_refused(tmp_path, world):
    manifest = save(tmp_path, 1, world, *trained(1)) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(
        CheckpointError, match=r"format: expected modelzoo.checkpoint version 2, found modelzoo.checkpoint version 1"
    ):
        load_checkpoint(tmp_path / "step-1", model=build(), optimizer=None, world=world)
