"""Old .bin files: only when asked for, by the restricted reader, and no code of theirs runs."""

import json
import os
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from modelzoo.errors import CheckpointError
from modelzoo.hub import open_checkpoint


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return OrderedDict(a=torch.randn(4, 3), b=torch.arange(3), c=torch.randn(2).half())


@pytest.mark.parametrize("zipped", [True, False])
def test_both_forms_are_read_into_memory_of_their_own(tmp_path: Path, zipped: bool) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
        read = {key: checkpoint.read(key) for key in checkpoint.tensors}
        part = checkpoint.read("a", [slice(1, 3), slice(0, 2)])
    os.truncate(tmp_path / "pytorch_model.bin", 0)
    assert all(torch.equal(read[key], value) for key, value in tensors().items())
    assert torch.equal(part, tensors()["a"][1:3, :2])
    assert checkpoint.tensors["c"].dtype == torch.float16


def test_views_of_one_storage_are_copied_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    torch.save({"a": whole[:3], "b": whole[2:], "t": whole.view(2, 3).t()}, tmp_path / "pytorch_model.bin")
    with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
        a, b, t = (checkpoint.read(key) for key in "abt")
    a.zero_()
    assert b.tolist() == [2, 3, 4, 5]
    assert t.is_contiguous()
    assert t.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_pickle_is_refused_without_its_flag(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"found only pytorch_model\.bin, which is a pickle.*pass allow_pickle=True"):
        open_checkpoint(tmp_path)


def test_safetensors_win_over_a_pickle(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
        assert list(checkpoint.tensors) == ["x"]


class Payload:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.canary),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "inside"])
def test_no_code_of_a_hostile_pickle_runs(tmp_path: Path, form: str) -> None:
    canary, path = tmp_path / "canary", tmp_path / "pytorch_model.bin"
    content = {"a": torch.ones(1), "b": Payload(canary)} if form == "inside" else Payload(canary)
    if form == "bare":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form != "legacy")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path, allow_pickle=True)
    assert not canary.exists()
    assert str(path) in str(error.value)
    assert "nothing of it was run" in str(error.value)
    assert "weights_only=False" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"state_dict": {"a": torch.ones(1)}}, ["state_dict: expected a tensor, found dict"]),
        ({"a": 3.0}, ["a: expected a tensor, found float"]),
        ({1: torch.ones(1)}, ["1: expected a tensor"]),
        ([torch.ones(1)], ["expected tensors by name, found list"]),
        ({"a": torch.ones(2).to_sparse()}, ["a: expected a dense tensor"]),
    ],
    ids=range(5),
)
def test_other_content_is_named(tmp_path: Path, content: object, words: list[str]) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path, allow_pickle=True)
    assert all(word in str(error.value) for word in (str(tmp_path / "pytorch_model.bin"), *words)), str(error.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_files_are_refused(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    for part in range(0, 32):
        path.write_bytes(content[: len(content) * part // 32])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
            open_checkpoint(tmp_path, allow_pickle=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_end_in_our_error_or_a_correct_load(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    refused = others = 0
    for _ in range(300):
        broken = bytearray(content)
        for at in torch.randint(0, len(content), (3,), generator=generator).tolist():
            broken[at] = int(torch.randint(0, 256, (1,), generator=generator))
        path.write_bytes(broken)
        try:
            with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
                for key in checkpoint.tensors:
                    checkpoint.read(key)
        except CheckpointError as error:
            refused += str(path) in str(error)
            others += str(path) not in str(error)
    assert refused > 10
    assert others == 0


def test_sharded_pickles_follow_the_rules_of_an_index(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}))
    with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
        assert torch.equal(checkpoint.read("b"), torch.zeros(2))
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        open_checkpoint(tmp_path)
    shutil.copy(tmp_path / "pytorch_model-00002-of-00002.bin", tmp_path.parent / "out.bin")
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "../out.bin"}}))
    with pytest.raises(CheckpointError, match=r"b: expected a plain name ending in \.bin, found '\.\./out\.bin'"):
        open_checkpoint(tmp_path, allow_pickle=True)


def test_an_old_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(CheckpointError, match=r"needs torch 2\.10 or later, found 2\.9\.1\+cpu"):
        open_checkpoint(tmp_path, allow_pickle=True)
