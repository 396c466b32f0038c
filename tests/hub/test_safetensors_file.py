"""Our reader takes what the safetensors library writes, refuses every broken file, and writes the library's bytes."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from modelzoo.errors import CheckpointError
from modelzoo.hub.safetensors_file import DTYPE_NAMES, SafetensorsFile, header_of, write_safetensors


def build(header: object, data: bytes = b"\0" * 16, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


GOOD = {"w": entry()}

HOSTILE: dict[str, tuple[bytes, list[str]]] = {
    "empty file": (b"", ["0 bytes"]),
    "seven bytes": (b"\0" * 7, ["7 bytes"]),
    "header length 2^63": (build(GOOD, length=2**63), [str(2**63)]),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", ["Git LFS", "git lfs pull"]),
    "header length beyond the file": (build(GOOD, length=2**20), ["cut short", str(2**20)]),
    "header over the limit": (build(b"{" + b" " * (8 * 2**20) + b"}"), ["at most 8388608"]),
    "header length 0": (build(GOOD, length=0), ["begins with {"]),
    "leading space": (build(b" " + json.dumps(GOOD).encode()), ["begins with {"]),
    "not JSON": (build(b"{w}"), ["expected JSON"]),
    "not UTF-8": (build(b'{"\xff": 1}'), ["expected JSON", "utf-8"]),
    "a list": (build(b"[]"), ["begins with {"]),
    "nested 10^5 deep": (build(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), ["nested too deeply"]),
    "duplicate key": (
        build(b'{"w":' + json.dumps(entry()).encode() + b',"w":' + json.dumps(entry()).encode() + b"}"),
        ["w stands there twice"],
    ),
    "duplicate field": (
        build(b'{"w":{"dtype":"F32","dtype":"F64","shape":[4],"data_offsets":[0,16]}}'),
        ["dtype stands there twice"],
    ),
    "entry is no object": (build({"w": 3}), ["w: expected dtype, shape and data_offsets, found 3"]),
    "missing field": (build({"w": {"dtype": "F32", "shape": [4]}}), ["w: expected dtype, shape and data_offsets"]),
    "extra field": (build({"w": entry(code="x")}), ["w: expected dtype, shape and data_offsets"]),
    "unknown dtype": (build({"w": entry("F13")}), ["w: dtype", "F13"]),
    "dtype is a number": (build({"w": entry(7)}), ["w: dtype", "7"]),
    "negative size": (build({"w": entry(shape=[-4])}), ["w: shape", "[-4]"]),
    "float size": (build({"w": entry(shape=[4.0])}), ["w: shape", "[4.0]"]),
    "bool size": (build({"w": entry(shape=[True, 4])}), ["w: shape", "[True, 4]"]),
    "shape is a string": (build({"w": entry(shape="4")}), ["w: shape", "4"]),
    "seventeen dims": (build({"w": entry(shape=[1] * 16 + [4])}), ["w: shape", "at most 16 sizes"]),
    "sizes that overflow": (build({"w": entry(shape=[2**31, 2**31, 4])}), ["w: expected 73786976294838206464 bytes"]),
    "empty shape of 2^40": (build({"w": entry(shape=[0, 2**40], offsets=[0, 0])}, b""), ["w: shape", str(2**40)]),
    "size of 5000 digits": (
        build(b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,16]}}'),
        ["expected JSON"],
    ),
    "shape does not fit the bytes": (build({"w": entry(shape=[5])}), ["w: expected 20 bytes", "[0, 16]"]),
    "reversed offsets": (build({"w": entry(offsets=[16, 0])}), ["w: data_offsets", "[16, 0]"]),
    "negative offset": (build({"w": entry(offsets=[-16, 0])}), ["w: data_offsets", "[-16, 0]"]),
    "one offset": (build({"w": entry(offsets=[0])}), ["w: data_offsets", "[0]"]),
    "offsets beyond the file": (build({"w": entry(offsets=[2**40, 2**40 + 16])}), ["w:", "a hole"]),
    "a hole": (build({"w": entry(), "v": entry(offsets=[20, 36])}, b"\0" * 36), ["v:", "a hole: 20"]),
    "an overlap": (build({"w": entry(), "v": entry(offsets=[8, 24])}, b"\0" * 24), ["v:", "an overlap: 8"]),
    "bytes after the end": (build(GOOD, b"\0" * 17), ["bytes that belong to no tensor"]),
    "cut short": (build(GOOD, b"\0" * 15), ["cut short"]),
    "metadata is a list": (build({"__metadata__": [], **GOOD}), ["__metadata__", "[]"]),
    "metadata holds a number": (build({"__metadata__": {"format": 1}, **GOOD}), ["__metadata__", "1"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_file_and_cause(name: str, tmp_path: Path) -> None:
    content, words = HOSTILE[name]
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(tmp_path / "model.safetensors", "folder/model.safetensors")
    text = str(error.value)
    assert text.startswith("folder/model.safetensors: ")
    assert all(word in text for word in words), text
    assert len(text) < 500


def test_a_key_of_a_megabyte_is_not_printed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(build({"k" * 2**20: 1}))
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(tmp_path / "x", "x")
    assert len(str(error.value)) < 500


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "z.weight": torch.randn(6, 5),
        "a.half": torch.randn(3, 4).half(),
        "b.brain": torch.randn(7).bfloat16(),
        "ü.scalar": torch.tensor(3.5),
        "ids": torch.arange(5),
        "mask": torch.tensor([True, False]),
        "wide": torch.randn(2, 2, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "cube": torch.randn(3, 4, 5),
        "q": torch.tensor([-1, 2], dtype=torch.int8),
    }


def test_what_the_library_writes_is_read_bit_for_bit(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "model.safetensors", "model.safetensors")
    assert file.entries.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert file.entries[key].shape == tuple(tensor.shape)
        assert file.entries[key].dtype == tensor.dtype
        assert torch.equal(file.read(key), tensor)
    file.close()
    file.close()


def test_our_file_is_the_librarys_file_byte_for_byte(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    spec = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    write_safetensors(tmp_path / "ours", spec, (tensors[key] for key in header_of(spec)[1]))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_every_dtype_is_written_as_the_library_orders_it(tmp_path: Path) -> None:
    tensors = {f"t{index}": torch.zeros(2).to(dtype) for index, dtype in enumerate(DTYPE_NAMES)}
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    spec = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    write_safetensors(tmp_path / "ours", spec, (tensors[key] for key in header_of(spec)[1]))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_box_is_the_slice_of_the_whole(tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelzoo.hub.safetensors_file._CHUNK_BYTES", 100)
    save_file(tensors, tmp_path / "x")
    file = SafetensorsFile(tmp_path / "x", "x")
    cube = tensors["cube"]
    for box in (
        [(0, 3), (0, 4), (0, 5)],
        [(1, 2), (0, 4), (0, 5)],
        [(0, 3), (1, 3), (0, 5)],
        [(1, 3), (0, 4), (2, 4)],
        [(2, 2), (0, 4), (0, 5)],
    ):
        index = [slice(*part) for part in box]
        assert torch.equal(file.read("cube", index), cube[tuple(index)])
    assert torch.equal(file.read("ü.scalar", []), tensors["ü.scalar"])
    file.close()


def test_a_tensor_read_does_not_depend_on_the_file(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1000)}, tmp_path / "x")
    file = SafetensorsFile(tmp_path / "x", "x")
    tensor = file.read("w")
    tensor[0] = 7
    os.truncate(tmp_path / "x", 0)
    assert tensor.sum() == 1006
    with pytest.raises(CheckpointError, match="x: w: expected 4000 more bytes, found the end of the file"):
        file.read("w")
    file.close()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="folder/x: cannot be opened: No such file or directory"):
        SafetensorsFile(tmp_path / "x", "folder/x")


def test_truncation_at_every_thirty_second_is_refused(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for part in range(32):
        (tmp_path / "x").write_bytes(content[: len(content) * part // 32])
        with pytest.raises(CheckpointError, match=r"^x: "):
            SafetensorsFile(tmp_path / "x", "x")


def test_what_we_accept_the_library_accepts_with_the_same_values(tmp_path: Path) -> None:
    """Flip bits and splice bytes of the header: our errors alone, and never a laxer reading than the library's."""
    save_file({"w" * 100: torch.arange(4.0), "v" * 100: torch.arange(3)}, tmp_path / "x")
    content = bytearray((tmp_path / "x").read_bytes())
    generator = torch.Generator().manual_seed(0)
    accepted = 0
    for _ in range(400):
        broken = bytearray(content)
        at = int(torch.randint(0, len(content) - 40, (1,), generator=generator))
        broken[at] ^= 1 << int(torch.randint(0, 8, (1,), generator=generator))
        (tmp_path / "y").write_bytes(broken)
        try:
            file = SafetensorsFile(tmp_path / "y", "y")
        except CheckpointError:
            continue
        accepted += 1
        try:
            with safe_open(tmp_path / "y", "pt") as library:
                assert set(library.keys()) == set(file.entries)
                for key in file.entries:
                    ours, theirs = file.read(key), library.get_tensor(key)
                    assert ours.dtype == theirs.dtype
                    assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        except SafetensorError as error:
            pytest.fail(f"the library refuses what we accept: {error}")
        finally:
            file.close()
    assert accepted > 10


def test_writing_checks_what_was_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w: expected torch.float32 \[2\], found torch.float64 \[2\]"):
        write_safetensors(tmp_path / "x", {"w": (torch.float32, (2,))}, [torch.zeros(2, dtype=torch.float64)])
