"""Indexes, links and JSON of a model folder: refused by file and field, before anything outside the folder is opened."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from audited import audited
from safetensors.torch import save_file

from modelzoo.errors import CheckpointError
from modelzoo.hub import open_checkpoint, read_config
from modelzoo.hub.files import check_inside, revision_of


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Collect the names of all files that Python opens; they are there after the block."""
    names: list[str] = []
    with audited({"open"}) as events:
        try:
            yield names
        finally:
            files = [arguments[0] for _, arguments in events]
            names += [os.fsdecode(file) if isinstance(file, str | bytes) else str(file) for file in files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards and their index; beside the folder a file that must not be read."""
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": torch.ones(2)}, model / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, model / "model-00002-of-00002.safetensors")
    (tmp_path / "victim").mkdir()
    save_file({"a": torch.full((2,), 7.0), "b": torch.ones(3)}, tmp_path / "victim" / "model.safetensors")
    write_index(model, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    return model


def write_index(model: Path, weight_map: object, **fields: object) -> None:
    content = {"metadata": {"total_size": 20}, "weight_map": weight_map} | fields
    (model / "model.safetensors.index.json").write_text(json.dumps(content))


def refusal(model: Path) -> str:
    """The message of the refusal; nothing outside the folder was opened on the way."""
    with opened_files() as names, pytest.raises(CheckpointError) as error:
        open_checkpoint(model)
    outside = [name for name in names if not Path(name).is_relative_to(model)]
    assert outside == []
    return str(error.value)


def test_shards_are_one_checkpoint(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors.keys() == {"a", "b"}
        assert checkpoint.tensors["b"].file == "model-00002-of-00002.safetensors"
        assert torch.equal(checkpoint.read("a"), torch.ones(2))
    with pytest.raises(CheckpointError, match="b: expected a tensor of this checkpoint"):
        checkpoint.read("b")


HOSTILE_NAMES = [
    "../victim/model.safetensors",
    "..",
    "/etc/passwd",
    "/etc/passwd.safetensors",
    "sub/model.safetensors",
    "sub\\model.safetensors",
    "model\0.safetensors",
    "",
    ".",
    ".hidden.safetensors",
    "model.bin",
    "m" * 300 + ".safetensors",
    "m/" * 50_000 + ".safetensors",
    7,
    None,
    ["model-00001-of-00002.safetensors"],
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: repr(name)[:30])
def test_names_that_are_no_plain_file_names_are_refused_before_opening(folder: Path, name: object) -> None:
    write_index(folder, {"a": "model-00001-of-00002.safetensors", "b": name})
    text = refusal(folder)
    assert "model.safetensors.index.json: weight_map: b: expected a plain name" in text
    assert repr(name)[:20] in text
    assert len(text) < 1000


def test_an_absolute_name_is_refused(folder: Path, tmp_path: Path) -> None:
    name = str(tmp_path / "victim" / "model.safetensors")
    write_index(folder, {"a": name, "b": name})
    text = refusal(folder)
    assert "weight_map: a" in text
    assert "weight_map: b" in text


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ([], ["weight_map", "[]"]),
        (["a"], ["weight_map", "['a']"]),
        (3, ["weight_map", "3"]),
        (None, ["weight_map", "None"]),
        ({}, ["weight_map", "{}"]),
        ("x", ["weight_map", "x"]),
    ],
    ids=str,
)
def test_a_weight_map_of_another_kind_is_named(folder: Path, weight_map: object, words: list[str]) -> None:
    write_index(folder, weight_map)
    assert all(word in refusal(folder) for word in ("model.safetensors.index.json", *words))


def test_an_index_without_a_weight_map_is_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"metadata": {}}')
    assert "weight_map: expected an object of file names by key, found nothing" in refusal(folder)


def test_metadata_may_be_missing_but_not_a_list(folder: Path) -> None:
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    open_checkpoint(folder).close()
    write_index(folder, names, metadata=[1])
    assert "metadata: expected an object, found [1]" in refusal(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["expected JSON"]),
        (b"{", ["expected JSON"]),
        (b"\xff\xfe", ["expected JSON"]),
        (b"[1]", ["expected a JSON object, found list"]),
        (b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', ["a stands there twice"]),
        (b"[" * 100_000, ["nested too deeply"]),
    ],
    ids=range(6),
)
def test_a_broken_index_is_named(folder: Path, text: bytes, words: list[str]) -> None:
    (folder / "model.safetensors.index.json").write_bytes(text)
    message = refusal(folder)
    assert str(folder / "model.safetensors.index.json") in message
    assert all(word in message for word in words), message


def test_an_index_of_a_million_keys_is_refused_by_its_size(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_bytes(b" " * (32 * 2**20 + 1))
    assert "expected at most 33554432 bytes, found 33554433" in refusal(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors: expected a file, found nothing" in refusal(folder)


def test_a_folder_or_a_pipe_as_a_shard_is_refused(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.mkdir()
    assert "not a regular file" in refusal(folder)
    shard.rmdir()
    os.mkfifo(shard)
    assert "not a regular file" in refusal(folder)


def test_index_and_shards_must_agree(folder: Path) -> None:
    write_index(
        folder,
        {"a": "model-00002-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"},
    )
    text = refusal(folder)
    for line in (
        "index.json: c: expected in model-00001-of-00002.safetensors, found nothing there",
        "index.json: a: expected in model-00002-of-00002.safetensors, found nothing there",
        "model-00001-of-00002.safetensors: a: expected to stand in model.safetensors.index.json, found only in the file",
    ):
        assert line in text, text


def test_a_key_in_two_shards_is_refused(folder: Path) -> None:
    save_file({"b": torch.zeros(3), "a": torch.zeros(2)}, folder / "model-00002-of-00002.safetensors")
    assert "a: expected once, found also in model-00001-of-00002.safetensors" in refusal(folder)


def test_two_sets_of_weights_are_refused(folder: Path) -> None:
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
    assert "found both model.safetensors and model.safetensors.index.json. Remove the one" in refusal(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(tmp_path / "victim" / "model.safetensors")
    text = refusal(folder)
    assert f"found a link to {tmp_path / 'victim' / 'model.safetensors'}" in text
    assert "not opened" in text
    shard.unlink()
    shard.symlink_to("model-00001-of-00002.safetensors")
    assert "a: expected once" in refusal(folder)
    shard.unlink()
    shard.symlink_to(tmp_path / "nowhere")
    assert "found a link to" in refusal(folder)


def cached(tmp_path: Path, blobs: Path) -> Path:
    """A snapshot as huggingface_hub lays it out, whose file is a link to a blob."""
    snapshot = tmp_path / "models--org--name" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    blobs.mkdir(parents=True)
    save_file({"a": torch.ones(2)}, blobs / "abc123")
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blobs / "abc123", snapshot))
    return snapshot


def test_a_snapshot_of_the_cache_links_to_its_own_blobs(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, tmp_path / "models--org--name" / "blobs")
    with open_checkpoint(snapshot) as checkpoint:
        assert torch.equal(checkpoint.read("a"), torch.ones(2))
    assert revision_of(snapshot) == "c0ffee"


def test_a_snapshot_may_use_the_caches_shared_blobs(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, tmp_path / "blobs" / "ab")
    open_checkpoint(snapshot).close()


def test_a_snapshot_may_not_use_another_repositorys_blobs(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, tmp_path / "models--org--other" / "blobs")
    assert "found a link to" in refusal(snapshot)


def test_blobs_beside_an_ordinary_folder_are_not_a_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, tmp_path / "models--org--name" / "blobs")
    plain = tmp_path / "models--org--name" / "plain"
    shutil.copytree(snapshot, plain, symlinks=True)
    (plain / "model.safetensors").unlink()
    (plain / "model.safetensors").symlink_to(tmp_path / "models--org--name" / "blobs" / "abc123")
    assert "found a link to" in refusal(plain)
    assert revision_of(plain) is None


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", "..", "a/b", "a\0b", "x" * 256])
def test_only_plain_names_are_looked_up(tmp_path: Path, name: str) -> None:
    with opened_files() as names, pytest.raises(CheckpointError, match=r"expected the name of a file in this folder"):
        check_inside(tmp_path, name)
    assert names == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1,}', ["expected JSON"]),
        (b'"bert"', ["expected a JSON object, found str"]),
        (b"null", ["found NoneType"]),
        (b'{"a": ' * 10_000 + b"1" + b"}" * 10_000, ["nested too deeply"]),
        (b'{"vocab_size": 5, "vocab_size": 6}', ["vocab_size stands there twice"]),
        (b'{"a": ' + b"9" * 5000 + b"}", ["expected JSON"]),
        (b" " * (8 * 2**20 + 1), ["at most 8388608 bytes, found 8388609"]),
        (b"\xff{}", ["expected JSON", "utf-8"]),
    ],
    ids=range(8),
)
def test_a_broken_config_is_named(tmp_path: Path, text: bytes, words: list[str]) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError) as error:
        read_config(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json"))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected the config of a model, found nothing"):
        read_config(tmp_path)


def test_a_config_that_links_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="found a link to"):
        read_config(model)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), ["expected model.safetensors or model.safetensors.index.json, found no weights"]),
        (lambda path: path.write_text(""), ["expected a model folder, found a file"]),
        (lambda path: None, ["expected a model folder, found nothing"]),
    ],
    ids=["empty", "file", "nothing"],
)
def test_a_folder_without_weights_is_named(tmp_path: Path, make: Callable[[Path], None], words: list[str]) -> None:
    make(tmp_path / "model")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path / "model")
    assert all(word in str(error.value) for word in (str(tmp_path / "model"), *words))
