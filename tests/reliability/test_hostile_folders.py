"""Single cases of hostile files that once ended in an exception that is not modelzoo's, in one without a file, or in nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_targets import (
    make_adapter,
    make_checkpoint,
    make_model,
    make_store,
    make_tokenizer,
    read_adapter,
    read_checkpoint,
    read_model,
    read_store,
    read_tokenizer,
    resealed,
)

from modelzoo.errors import CheckpointError, ConfigError, DataError, ModelZooError

DIGITS = "9" * 5000
"""More than Python turns into a number."""


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"model_type": 2}, r"config\.json: model_type=2 is not known"),
        ("bert", {"num_attention_heads": 3}, r"config\.json: num_heads=3 does not divide hidden_size=8"),
        ("gpt2", {"pad_token_id": 20}, r"config\.json: pad_token_id=20 is not below vocab_size=20"),
        ("t5", {"relative_attention_num_buckets": 2}, r"config\.json: num_buckets=2 must be at least 4"),
    ],
)
def test_a_value_of_a_config_is_named_with_its_file(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_model(tmp_path, family)
    change(tmp_path / "config.json", **changes)
    with pytest.raises(ModelZooError, match=message):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", '{"model": 7}', "expected readable tokenizer files"),
        ("tokenizer.json", '{"version": ' + DIGITS + "}", r"tokenizer\.json: expected JSON"),
        ("tokenizer_config.json", '{"model_max_length": ' + DIGITS + "}", r"tokenizer_config\.json: expected JSON"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    make_tokenizer(tmp_path, "bert")
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank_pattern": True}, "rank_pattern: expected an object of whole numbers from 1 by module, found True"),
        ({"alpha_pattern": {"query": "7"}}, "alpha_pattern: expected an object of numbers above 0"),
        ({"lora_dropout": 2**64}, f"lora_dropout: expected a number from 0 to below 1, found {2**64}"),
        ({"r": True}, "r: expected a whole number from 1, found True"),
        ({"lora_alpha": float("inf")}, "lora_alpha: expected a number above 0, found inf"),
    ],
)
def test_a_number_of_an_adapter_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_adapter(tmp_path)
    change(tmp_path / "adapter" / "adapter_config.json", **changes)
    with pytest.raises(ConfigError, match=r"adapter_config\.json: this adapter cannot be used:\n  " + message):
        read_adapter(tmp_path)


def manifest_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "checkpoints" / "step-2" / "manifest.json"
    return path, json.loads(path.read_text())


def test_a_number_that_is_too_long_damages_a_manifest(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path, _ = manifest_of(tmp_path)
    path.write_text(path.read_text().replace('"world_size": 1', f'"world_size": {DIGITS}'))
    with pytest.raises(CheckpointError, match=r"manifest\.json: not a readable manifest: ValueError"):
        read_checkpoint(tmp_path)


HOSTILE: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "files in a list": (("files",), [], r"files: expected dict, found \[\]"),
    "a file elsewhere": (("files", "../x"), {"size_bytes": 1, "sha256": ""}, "expected a plain file name"),
    "a step that is none": (("step",), {"x": 1}, "step: expected a whole number"),
    "a step below zero": (("step",), -1, "step: expected a whole number, found -1"),
    "a shape beyond all": (("tensors", "{first}", "shape"), [2**62, 2], "expected parts"),
    "a part beyond the whole": (("tensors", "{first}", "parts", 0, "offset"), [1] * 2, "expected parts within"),
    "a part of another file": (("tensors", "{first}", "parts", 0, "file"), "/etc/passwd", r"expected a file of \["),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_vouches_for_itself_is_looked_at_all_the_same(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path, values = manifest_of(tmp_path)
    keys, value, message = HOSTILE[name]
    first = next(key for key, facts in values["tensors"].items() if len(facts["shape"]) == 2)
    keys = tuple(first if key == "{first}" else key for key in keys)
    place: Any = values
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(values))
    resealed(tmp_path)
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*" + message):
        read_checkpoint(tmp_path)


def test_generators_that_are_missing_are_named_with_their_checkpoint(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path, values = manifest_of(tmp_path)
    del values["tensors"]["random/0-0/python_gauss"]
    path.write_text(json.dumps(values))
    resealed(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-2: random state: missing \['python_gauss'\]"):
        read_checkpoint(tmp_path)


def test_a_flipped_bit_of_a_store_is_told_when_it_is_read(tmp_path: Path) -> None:
    make_store(tmp_path)
    expected = read_store(tmp_path)
    path = tmp_path / "store" / "tokens.bin"
    content = path.read_bytes()
    for at in (0, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DataError, match=r"tokens\.bin: the bytes from 0 on: expected CRC-32 [0-9a-f]{8}, found [0-9a-f]{8}"):
            read_store(tmp_path)
    path.write_bytes(content)
    assert read_store(tmp_path) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": 3}, r"store\.json: sources: expected"),
        ({"vocab_size": "9"}, r"store\.json: vocab_size: expected"),
        ({"documents": 2}, r"expected 2 documents of \d+ tokens, as store\.json says, found \d+ of \d+"),
        ({"block_crc32": []}, r"tokens\.bin: expected 0 blocks"),
    ],
)
def test_a_fact_of_a_store_that_is_wrong_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_store(tmp_path)
    change(tmp_path / "store" / "store.json", **changes)
    with pytest.raises(DataError, match=message):
        read_store(tmp_path)
