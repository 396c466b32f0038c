import json
import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from saved_models import assert_same, save, trained
from tiny_model import build, step
from torch import nn

from modelzoo.errors import CheckpointError, SaveError
from modelzoo.runtime import (
    collect_random_state,
    connect,
    find_latest,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    read_manifest,
    restore_random_state,
    retain,
    set_aside,
    step_folders,
    sweep,
)


@pytest.fixture
def world():
    with connect(device="cpu") as one:
        yield one


def test_state_comes_back_bit_for_bit_and_training_goes_on_the_same(tmp_path, world):
    model, optimizer = trained()
    path = save(tmp_path, 2, world, model, optimizer, {"position": 24, "best": {"value": 0.1 + 0.2}})
    drawn = (torch.rand(3), random.random(), np.random.rand())
    other, fresh = trained(0, seed=5)
    state = load_checkpoint(path, model=other, optimizer=fresh, world=world)
    assert state == {"position": 24, "best": {"value": 0.1 + 0.2}}
    assert_same(model_tensors(model), model_tensors(other))
    assert_same(optimizer_tensors(model, optimizer), optimizer_tensors(other, fresh))
    assert torch.equal(torch.rand(3), drawn[0])
    assert (random.random(), np.random.rand()) == drawn[1:]
    step(model, optimizer, seed=9)
    step(other, fresh, seed=9)
    assert_same(model_tensors(model), model_tensors(other))


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "random.safetensors",
        "state.json",
    ]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 2
    assert (manifest["config_hash"], manifest["data_fingerprint"], manifest["world_size"]) == ("config", "data", 1)
    assert manifest["tensors"]["model/embedding.weight"]["shape"] == [7, 8]
    assert "model/head.weight" not in manifest["tensors"], "a tied parameter stands under its first name"


def test_optimizer_without_a_step_is_a_legal_state(tmp_path, world):
    model, optimizer = trained(0)
    path = save(tmp_path, 0, world, model, optimizer)
    other, fresh = trained(0, seed=3)
    load_checkpoint(path, model=other, optimizer=fresh, world=world)
    assert not fresh.state
    step(model, optimizer)
    step(other, fresh)
    assert_same(model_tensors(model), model_tensors(other))


def test_published_checkpoint_is_never_written_into(tmp_path, world):
    model, optimizer = trained()
    save(tmp_path, 2, world, model, optimizer)
    with pytest.raises(SaveError, match="step-2: exists already"):
        save(tmp_path, 2, world, model, optimizer)


def test_killed_process_loses_nothing(tmp_path, world):
    model, optimizer = trained(2)
    number = 1
    for delay_s in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4):
        save(tmp_path, number, world, model, optimizer)
        child = os.fork()
        if child == 0:
            while True:
                number += 1
                save(tmp_path, number, world, model, optimizer)
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = find_latest(tmp_path)
        assert not found.skipped
        assert found.manifest.step >= number
        sweep(tmp_path)
        number = found.manifest.step + 1
    assert number > 7, "no child published anything"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "removed"])
def test_damaged_newest_falls_back_and_says_why(tmp_path, world, file, damage):
    save(tmp_path, 1, world, *trained(1))
    path = save(tmp_path, 2, world, *trained(2)) / file
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-5])
    elif damage == "flipped":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        path.unlink()
    found = find_latest(tmp_path)
    assert found.manifest.step == 1
    (reason,) = found.skipped
    assert str(path) in reason
    assert {"cut": f"expected {len(content)} bytes, found {len(content) - 5}", "flipped": "expected sha256", "removed": "missing"}[
        damage
    ] in reason
    with pytest.raises(CheckpointError, match=file):
        load_checkpoint(tmp_path / "step-2", model=build(), optimizer=None, world=world)


def test_manifest_with_any_flipped_byte_is_refused(tmp_path, world):
    path = save(tmp_path, 2, world, *trained()) / "manifest.json"
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        flipped = bytearray(content)
        flipped[place] ^= 1
        if flipped.split() == content.split():
            continue
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="none of its checkpoints can be used"):
            find_latest(tmp_path)


def test_a_manifest_has_a_line_for_each_file_and_tensor(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    manifest = read_manifest(path)
    lines = (path / "manifest.json").read_text().splitlines()
    assert json.loads("\n".join(lines)) == manifest.to_json()
    for name in (*manifest.files, *manifest.tensors):
        assert sum(line.startswith(f"  {json.dumps(name)}: {{") for line in lines) == 1


def test_hostile_file_names_in_a_manifest_are_refused(tmp_path, world):
    from modelzoo.runtime.checkpoints.manifest import MANIFEST, Manifest, manifest_text
    from modelzoo.runtime.checkpoints.tensors import WrittenFile

    for name in ("../secret", "/etc/passwd", "a/b", ""):
        manifest = Manifest(step=1, world_size=1, config_hash="", data_fingerprint="", files={name: WrittenFile(1, "")})
        (tmp_path / MANIFEST).write_text(manifest_text(manifest))
        with pytest.raises(CheckpointError, match="expected a plain file name"):
            read_manifest(tmp_path)


def test_files_of_two_saves_are_not_mixed(tmp_path, world):
    first = save(tmp_path / "a", 2, world, *trained(2))
    second = save(tmp_path / "b", 2, world, *trained(2))
    shutil.copy(first / "model.safetensors", second / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: generation: expected \w+, found \w+; it belongs to another save"
    ):
        load_checkpoint(second, model=build(), optimizer=None, world=world, verify=False)


def test_orphans_of_killed_saves_are_never_offered(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    shutil.copytree(path, tmp_path / ".tmp-step-3-abc")
    assert find_latest(tmp_path).path == path
    assert sweep(tmp_path) == [".tmp-step-3-abc"]
    assert sweep(tmp_path / "absent") == []


def test_damaged_checkpoint_is_set_aside_so_that_its_step_can_be_saved_again(tmp_path, world):
    model, optimizer = trained()
    for number in (1, 2, 3):
        save(tmp_path, number, world, model, optimizer)
    (tmp_path / "step-3" / "state.json").unlink()
    found = find_latest(tmp_path)
    (aside,) = set_aside(tmp_path, found.manifest.step)
    assert re.fullmatch(r"damaged-step-3-\w{8}", aside)
    save(tmp_path, 3, world, model, optimizer)
    assert find_latest(tmp_path).manifest.step == 3
    assert sweep(tmp_path) == []
    assert (tmp_path / aside / "model.safetensors").is_file(), "what may hold the only good weights is never deleted"


def test_retention_keeps_the_last_the_best_and_never_counts_broken_ones(tmp_path, world):
    model, optimizer = trained()
    for number in range(1, 7):
        save(tmp_path, number, world, model, optimizer)
    (tmp_path / "step-6" / "manifest.json").unlink()
    assert retain(tmp_path, 2, keep={1}) == ["step-3", "step-2"]
    assert [path.name for path in step_folders(tmp_path)] == ["step-6", "step-5", "step-4", "step-1"]


def test_retention_keeps_a_second_complete_one(tmp_path, world):
    model, optimizer = trained()
    for number in range(1, 5):
        save(tmp_path, number, world, model, optimizer)
    retain(tmp_path, 1)
    assert [path.name for path in step_folders(tmp_path)] == ["step-4", "step-3"]


def test_too_little_space_is_refused_before_writing(tmp_path, world, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 4096))
    with pytest.raises(SaveError, match=r"save of step 2 needs 1\.0 MiB, 4\.0 KiB free at "):
        save(tmp_path, 2, world, *trained())
    assert list(tmp_path.iterdir()) == []


def test_model_of_another_shape_is_refused_and_left_alone(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    other = build(seed=3)
    other.blocks[0][0] = nn.Linear(8, 9)
    other.extra = nn.Parameter(torch.zeros(2))
    before = {name: tensor.clone() for name, tensor in model_tensors(other).items()}
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(path, model=other, optimizer=None, world=world)
    assert "model/blocks.0.0.weight: expected shape [9, 8], found [8, 8]" in str(raised.value)
    assert "model/extra: missing from the checkpoint" in str(raised.value)
    assert_same(model_tensors(other), before)


def test_model_of_another_dtype_is_refused(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    with pytest.raises(CheckpointError, match=r"model/embedding.weight: expected bfloat16, found float32"):
        load_checkpoint(path, model=build().bfloat16(), optimizer=None, world=world)


def test_moment_of_another_shape_is_refused_naming_both(tmp_path, world):
    model, optimizer = trained()
    optimizer.state[model.head.bias]["exp_avg"] = torch.zeros(3)
    path = save(tmp_path, 2, world, model, optimizer)
    other, fresh = trained(0)
    with pytest.raises(CheckpointError, match=r"optimizer/exp_avg/head.bias: expected shape \[7\], found \[3\]"):
        load_checkpoint(path, model=other, optimizer=fresh, world=world)


def test_moment_of_another_dtype_is_refused(tmp_path, world):
    model, optimizer = trained()
    optimizer.state[model.head.bias]["exp_avg"] = torch.zeros(7, dtype=torch.bfloat16)
    path = save(tmp_path, 2, world, model, optimizer)
    other, fresh = trained(0)
    with pytest.raises(CheckpointError, match=r"optimizer/exp_avg/head.bias: expected float32, found bfloat16"):
        load_checkpoint(path, model=other, optimizer=fresh, world=world)


def test_moment_that_is_missing_beside_another_is_refused(tmp_path, world):
    model, optimizer = trained()
    del optimizer.state[model.head.bias]["exp_avg"]
    path = save(tmp_path, 2, world, model, optimizer)
    other, fresh = trained(0)
    with pytest.raises(CheckpointError, match=r"optimizer: head.bias: expected \['exp_avg', .* found \['exp_avg_sq', 'step'\]"):
        load_checkpoint(path, model=other, optimizer=fresh, world=world)


def test_moments_of_a_later_frozen_parameter_are_refused_by_name(tmp_path, world):
    path = save(tmp_path, 2, world, *trained())
    other = build()
    fresh = torch.optim.AdamW([p for name, p in other.named_parameters() if name != "head.bias"], fused=True)
    with pytest.raises(CheckpointError, match=r"optimizer/exp_avg/head.bias: expected a trained parameter of this name"):
        load_checkpoint(path, model=other, optimizer=fresh, world=world)


def test_wrapper_prefixes_are_not_saved(tmp_path, world):
    model = build()
    wrapped = nn.Module()
    wrapped._orig_mod = model
    assert list(model_tensors(wrapped)) == list(model_tensors(model))


def test_random_state_of_another_kind_is_refused():
    state = collect_random_state()
    with pytest.raises(CheckpointError, match=r"missing \['numpy'\]"):
        restore_random_state({name: tensor for name, tensor in state.items() if name != "numpy"})
    with pytest.raises(CheckpointError, match="not a generator's state"):
        restore_random_state({**state, "torch": torch.zeros(3, dtype=torch.uint8)})
