"""A saved folder is complete, plain Hugging Face, and appears at once or not at all."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modelzoo.errors import CheckpointError, SaveError
from modelzoo.hub import ModelFacts, save_pretrained
from modelzoo.hub import publish as publish_module
from modelzoo.models.bert import Bert

pytest_plugins = ["tiny_folders"]

Folders = Callable[..., Path]


@pytest.fixture
def model(hf_folder: Folders) -> Bert:
    """A tiny classifier read from a folder that also holds tokenizer files."""
    folder = hf_folder(num_labels=3)
    (folder / "vocab.txt").write_bytes(b"[PAD]\r\n\xf0\x9f\x98\x80\n")
    (folder / "tokenizer_config.json").write_bytes(b'{"b": 1,  "a": 2}')
    (folder / "training_args.bin").write_bytes(b"pickle")
    return Bert.from_pretrained(folder)


def save(model: Bert, folder: Path, **options: Any) -> Path:
    return save_pretrained(model, folder, model.facts(), **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_transformers_writes_and_one_file_more(model: Bert, tmp_path: Path) -> None:
    folder = save(model, tmp_path / "a" / "b" / "out")
    assert folder == tmp_path / "a" / "b" / "out"
    assert names(folder) == ["config.json", "model.safetensors", "modelzoo.json", "tokenizer_config.json", "vocab.txt"]
    source = model.source_folder
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes(), name
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    own = json.loads((folder / "modelzoo.json").read_text())
    assert (own["family"], own["task"], own["source"], own["revision"]) == ("bert", "classification", "hf", None)
    assert own["modelzoo_version"]
    assert str(tmp_path) not in (folder / "modelzoo.json").read_text()


def test_a_snapshots_repository_and_commit_are_noted(model: Bert, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "c0ffee"
    shutil.copytree(model.source_folder, snapshot)
    own = json.loads((save(Bert.from_pretrained(snapshot), tmp_path / "out") / "modelzoo.json").read_text())
    assert (own["source"], own["revision"]) == ("org/name", "c0ffee")


def test_generation_settings_are_copied(model: Bert, tmp_path: Path) -> None:
    (model.source_folder / "generation_config.json").write_bytes(b'{"eos_token_id": 3}')
    assert (save(model, tmp_path / "out") / "generation_config.json").read_bytes() == b'{"eos_token_id": 3}'


def test_more_than_ten_labels_are_sorted_as_transformers_sorts_them(hf_folder: Folders, tmp_path: Path) -> None:
    source = hf_folder(num_labels=12)
    saved = save(Bert.from_pretrained(source), tmp_path / "out")
    assert (saved / "config.json").read_bytes() == (source / "config.json").read_bytes()


@pytest.mark.parametrize("limit", [1000, "1KB", "1.0 kb", "0.001MB"])
def test_shards_are_read_by_transformers_and_by_us(model: Bert, tmp_path: Path, limit: str | int) -> None:
    from transformers import BertForSequenceClassification

    folder = save(model, tmp_path / "out", max_shard_size=limit)
    shards = [name for name in names(folder) if name.endswith(".safetensors")]
    assert len(shards) > 2
    assert all(name == f"model-{index:05}-of-{len(shards):05}.safetensors" for index, name in enumerate(shards, start=1))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    parts = {name: load_file(folder / name) for name in shards}
    assert index["weight_map"] == {key: name for name, part in parts.items() for key in part}
    assert index["metadata"]["total_size"] == sum(value.nbytes for part in parts.values() for value in part.values())
    assert all(len(part) == 1 or sum(value.nbytes for value in part.values()) <= 1000 for part in parts.values())
    reference, info = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    again = Bert.from_pretrained(folder)
    assert all(torch.equal(one, two) for one, two in zip(again.parameters(), model.parameters(), strict=True))
    assert torch.equal(reference.classifier.weight, model.get_parameter("head.output.weight"))


@pytest.mark.parametrize("limit", ["0", 0, -5, "x", "5XB", "", "nan", "infGB"])
def test_a_shard_size_that_is_none_is_refused(model: Bert, tmp_path: Path, limit: str | int) -> None:
    with pytest.raises(SaveError, match="max_shard_size=") as error:
        save(model, tmp_path / "out", max_shard_size=limit)
    assert repr(limit) in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.float32])
def test_the_config_states_the_files_dtype(model: Bert, tmp_path: Path, dtype: torch.dtype | None) -> None:
    folder = save(model.bfloat16(), tmp_path / "out", dtype=dtype)
    wanted = dtype or torch.bfloat16
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {wanted}
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(wanted).removeprefix("torch.")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("content", ["file", "folder", "hidden"])
def test_a_folder_in_use_is_refused(model: Bert, tmp_path: Path, content: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    {
        "file": lambda: (folder / "notes.txt").write_text("x"),
        "folder": lambda: (folder / "runs").mkdir(),
        "hidden": lambda: (folder / ".git").mkdir(),
    }[content]()
    before = names(folder)
    with pytest.raises(SaveError, match="expected an empty folder or nothing, found") as error:
        save(model, folder)
    assert before[0] in str(error.value)
    with pytest.raises(SaveError, match=r"expected a model to overwrite, found .* and no config\.json"):
        save(model, folder, overwrite=True)
    assert names(folder) == before
    assert names(tmp_path) == ["hf", "out"]


def test_a_file_or_a_link_in_the_folders_place_is_refused(model: Bert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "hf")
    for name, kind in (("file", "a file"), ("link", "a link")):
        with pytest.raises(SaveError, match=f"found {kind}"):
            save(model, tmp_path / name, overwrite=True)
    assert (tmp_path / "file").read_text() == "x"


def test_an_empty_folder_is_filled(model: Bert, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "model.safetensors" in names(save(model, tmp_path / "out"))


def test_overwriting_replaces_the_model_and_keeps_the_rest(model: Bert, tmp_path: Path) -> None:
    folder = save(model, tmp_path / "out", max_shard_size=1000)
    (folder / "README.md").write_text("mine")
    (folder / "pytorch_model.bin").write_bytes(b"old")
    (folder / "runs").mkdir()
    (folder / "runs" / "log").write_text("kept")
    with torch.no_grad():
        model.get_parameter("head.output.weight").fill_(0.5)
    save(model, folder, overwrite=True)
    assert names(folder) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "modelzoo.json",
        "runs",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (folder / "runs" / "log").read_text() == "kept"
    assert bool((load_file(folder / "model.safetensors")["classifier.weight"] == 0.5).all())
    assert names(tmp_path) == ["hf", "out"]


def test_a_model_may_be_saved_over_its_own_source(model: Bert) -> None:
    source = model.source_folder
    vocab = (source / "vocab.txt").read_bytes()
    save(model, source, overwrite=True)
    assert (source / "vocab.txt").read_bytes() == vocab
    assert (source / "training_args.bin").read_bytes() == b"pickle"
    assert Bert.from_pretrained(source).config.num_labels == 3


class _Stop(Exception):
    pass


STEPS = ["write_safetensors", "write_file", "_carry_over", "_sync", "_swap"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), _Stop(), KeyboardInterrupt()], ids=["disk", "bug", "ctrl-c"]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_that_fails_leaves_what_was_there(
    model: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, overwrite: bool
) -> None:
    folder = tmp_path / "out"
    if overwrite:
        save(model, folder)
    before = snapshot(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise error

    module = "save" if step in ("write_safetensors", "write_file") else "publish"
    monkeypatch.setattr(f"modelzoo.hub.{module}.{step}", fail)
    expected = SaveError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised:
        save(model, folder, overwrite=overwrite)
    if isinstance(error, OSError):
        assert str(folder) in str(raised.value)
        assert "No space left on device" in str(raised.value)
    assert snapshot(tmp_path) == before
    assert names(tmp_path) == (["hf", "out"] if overwrite else ["hf"])


def test_a_rename_that_fails_puts_the_old_folder_back(model: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(model, tmp_path / "out")
    before = snapshot(tmp_path)
    rename = Path.rename

    def fail_second(path: Path, target: Path) -> Path:
        if path.name.startswith(".tmp-"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(SaveError, match="Input/output error"):
        save(model, folder, overwrite=True)
    assert snapshot(tmp_path) == before


def test_too_little_space_is_refused_with_both_sizes(model: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(publish_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SaveError, match=r"the model needs 1\.0 MiB, .* has 1\.0 MiB free"):
        save(model, tmp_path / "out")
    assert names(tmp_path) == ["hf"]


def test_a_folder_that_may_not_be_written_is_named(model: Bert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=f"expected a folder at {tmp_path / 'file'}, found a file"):
        save(model, tmp_path / "file" / "deep" / "out")


def test_a_file_that_grows_too_large_leaves_what_was_there(model: Bert, tmp_path: Path) -> None:
    folder = save(model, tmp_path / "out")
    before = snapshot(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 1000, 5000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(SaveError, match=r"could not be written \(File too large\); what was there before is as it was"):
                save(model, folder, overwrite=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("head.output.weight", torch.zeros(5, 8), ["expected shape [3, 8] (num_labels=3, hidden_size=8), found [5, 8]"]),
        ("embeddings.token.weight", torch.zeros(32, 8), ["expected shape [20, 8] (vocab_size=20, hidden_size=8), found [32, 8]"]),
        ("pooler.dense.bias", None, ["expected in the model, found nothing"]),
        ("head.output.bias", torch.zeros(3, dtype=torch.int32), ["expected a float tensor, found torch.int32"]),
        ("head.output.bias", torch.zeros(3, device="meta"), ["expected values, found a tensor on meta"]),
        ("extra", torch.zeros(2), ["expected no such tensor, found [2]"]),
    ],
    ids=range(6),
)
def test_a_model_that_its_config_does_not_describe_is_refused(
    model: Bert, tmp_path: Path, name: str, tensor: torch.Tensor | None, words: list[str]
) -> None:
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if tensor is None:
        delattr(module, attribute)
        module.register_parameter(attribute, None)
    else:
        setattr(module, attribute, torch.nn.Parameter(tensor, requires_grad=False))
    with pytest.raises((CheckpointError, SaveError)) as error:
        save(model, tmp_path / "out")
    assert name in str(error.value)
    assert "bert, task classification" in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert names(tmp_path) == ["hf"]


def test_layers_that_the_config_lacks_are_refused(model: Bert, tmp_path: Path) -> None:
    facts = model.facts()
    fewer = ModelFacts(facts.family, facts.task, {**facts.values, "num_layers": 1}, facts.source, facts.source_folder)
    with pytest.raises(CheckpointError, match=r"encoder\.layers\.1\..*: expected no such tensor"):
        save_pretrained(model, tmp_path / "out", fewer)


def test_a_model_without_a_source_is_written_whole(model: Bert, tmp_path: Path) -> None:
    from transformers import BertForSequenceClassification

    facts = model.facts()
    folder = save_pretrained(model, tmp_path / "out", ModelFacts(facts.family, facts.task, facts.values))
    assert names(folder) == ["config.json", "model.safetensors", "modelzoo.json"]
    reference, info = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reference.config.num_labels == 3


def test_a_wrapped_model_is_saved_under_plain_names(model: Bert, tmp_path: Path) -> None:
    wrapped = torch.nn.Module()
    wrapped._orig_mod = model
    folder = save_pretrained(wrapped, tmp_path / "out", model.facts())
    assert load_file(folder / "model.safetensors").keys() == load_file(model.source_folder / "model.safetensors").keys()


def test_a_tokenizer_file_that_links_out_is_not_copied(model: Bert, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (model.source_folder / "merges.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="found a link to"):
        save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_killed_save_leaves_no_folder_of_that_name(model: Bert, tmp_path: Path) -> None:
    """The temporary folder is beside the target and begins with a dot; a kill can leave it, never half a target."""
    seen: list[list[str]] = []
    original = publish_module._swap

    def look(temporary: Path, target: Path, aside: Path) -> None:
        seen.append([path.name for path in tmp_path.iterdir() if path.name != "hf"])
        original(temporary, target, aside)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_module, "_swap", look)
        save(model, tmp_path / "out")
    assert len(seen) == 1
    assert len(seen[0]) == 1
    assert seen[0][0].startswith(".tmp-out-")
    assert os.path.isdir(tmp_path / "out")
