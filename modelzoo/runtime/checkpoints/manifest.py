"""The manifest of a training checkpoint: which files belong to it, their hashes, and where every tensor lies in them.

It is written last, so a folder without a readable manifest is no checkpoint.
"""

import hashlib
import json
import math
import platform
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import torch

from modelzoo.errors import CheckpointError
from modelzoo.runtime.checkpoints.durable import WrittenFile, file_sha256

__all__ = ["MANIFEST", "Manifest", "Part", "StoredTensor", "check_files", "manifest_text", "read_manifest"]

MANIFEST = "manifest.json"
FORMAT = "modelzoo.checkpoint"
VERSION = 2
HASHERS = 2
"""Threads that read files for their hashes; one core hashes about 1 GiB a second, more than a disk gives."""


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor in one file: the whole of it, or what one rank held."""

    file: str
    key: str
    """Its name in that file."""
    offset: tuple[int, ...]
    """Where the box begins in the whole tensor, one number a dimension."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the state."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        parts = [
            {"file": part.file, "key": part.key, "offset": list(part.offset), "shape": list(part.shape)} for part in self.parts
        ]
        return {"shape": list(self.shape), "dtype": self.dtype, "parts": parts}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint folder holds and what it was made of."""

    step: int
    """Optimizer steps taken."""
    world_size: int
    """Ranks that took part in the save; any other number can read it."""
    config_hash: str
    data_fingerprint: str
    generation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """One id for all files of a save; each carries it."""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(
        default_factory=lambda: {"torch": str(torch.__version__), "python": platform.python_version()}
    )
    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    """By plain file name, the manifest itself left out."""
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    """By kind and name: `model/encoder...`, `optimizer/exp_avg/encoder...`, `random/0-0/torch`."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, with a checksum over the rest."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        values = {
            "format": FORMAT,
            "version": VERSION,
            **plain,
            "versions": dict(self.versions),
            "files": {name: {"size_bytes": file.size_bytes, "sha256": file.sha256} for name, file in self.files.items()},
            "tensors": {name: tensor.to_json() for name, tensor in self.tensors.items()},
        }
        return {**values, "checksum": _checksum(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the manifest that `to_json` described.

        Raises:
            CheckpointError: Another format or version, or a value that does not match its checksum.
        """
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            found = f"{values.get('format')} version {values.get('version')}"
            raise CheckpointError(f"format: expected {FORMAT} version {VERSION}, found {found}")
        rest = {key: value for key, value in values.items() if key != "checksum"}
        if values.get("checksum") != _checksum(rest):
            raise CheckpointError(f"checksum: expected {_checksum(rest)}, found {values.get('checksum')}; the manifest is damaged")
        del rest["format"], rest["version"]
        for name, kind in _KINDS.items():
            _require(name, rest.get(name), kind)
        rest["files"] = {name: _file(name, facts) for name, facts in rest["files"].items()}
        rest["tensors"] = {name: _stored(name, facts, rest["files"]) for name, facts in rest["tensors"].items()}
        return cls(**rest)


_KINDS: Mapping[str, type] = {
    "step": int,
    "world_size": int,
    "config_hash": str,
    "data_fingerprint": str,
    "generation": str,
    "created": str,
    "versions": dict,
    "files": dict,
    "tensors": dict,
}


def _require(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise CheckpointError(f"{name}: expected {'a whole number' if kind is int else kind.__name__}, found {_shown(value)}")


def _shown(value: object) -> str:
    return repr(value)[:120]


def _file(name: str, facts: Mapping[str, Any]) -> WrittenFile:
    if name != Path(name).name or name in {"", ".", ".."} or "\0" in name:
        raise CheckpointError(f"files: {_shown(name)}: expected a plain file name")
    _require(f"files: {name}: size_bytes", facts["size_bytes"], int)
    _require(f"files: {name}: sha256", facts["sha256"], str)
    return WrittenFile(**facts)


def _stored(name: str, facts: Mapping[str, Any], files: Mapping[str, WrittenFile]) -> StoredTensor:
    """Return where a tensor lies, after looking that its parts lie within it, in files of the checkpoint, and are enough."""
    shape = _sizes(name, facts["shape"])
    _require(f"tensors: {_shown(name)}: dtype", facts["dtype"], str)
    parts = []
    for part in facts["parts"]:
        _require(f"tensors: {_shown(name)}: key", part["key"], str)
        if part["file"] not in files:
            raise CheckpointError(f"tensors: {_shown(name)}: expected a file of {sorted(files)}, found {_shown(part['file'])}")
        box = Part(part["file"], part["key"], _sizes(name, part["offset"]), _sizes(name, part["shape"]))
        sides = [len(box.offset), len(box.shape)]
        if sides != [len(shape)] * 2 or any(o + s > whole for o, s, whole in zip(box.offset, box.shape, shape, strict=True)):
            raise CheckpointError(f"tensors: {_shown(name)}: expected parts within {list(shape)}, found {_shown(part)}")
        parts.append(box)
    held = sum(math.prod(part.shape) for part in parts)
    if held < math.prod(shape):
        raise CheckpointError(f"tensors: {_shown(name)}: expected parts of {math.prod(shape)} values together, found {held}")
    return StoredTensor(shape, facts["dtype"], tuple(parts))


def _sizes(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(size, int) and 0 <= size < 2**63 for size in values):
        raise CheckpointError(f"tensors: {_shown(name)}: expected a list of sizes, found {_shown(values)}")
    return tuple(values)


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(manifest: Manifest) -> str:
    """Return the text of the manifest file, a line for each file and tensor; the caller writes it, durably and last."""
    lines = []
    for name, value in manifest.to_json().items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items())
            lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint folder.

    Raises:
        CheckpointError: It is missing or damaged; the message names the file.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise CheckpointError(f"expected a JSON object, found {type(values).__name__}")
        return Manifest.from_json(values)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so the save was not completed") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable manifest: {type(error).__name__}: {error}") from error


def check_files(folder: Path, manifest: Manifest, *, hashes: bool = True, share: tuple[int, int] = (0, 1)) -> None:
    """Compare the files of a checkpoint with its manifest.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        hashes: Also read each file and compare its sha256; sizes alone otherwise.
        share: Which part of the files is read for its hash, of how many: ranks share the work. Sizes are always those of all.

    Raises:
        CheckpointError: The first file that is missing, of another size or of another content, with both values.
    """
    for name, facts in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.is_symlink():
            raise CheckpointError(f"{path}: missing; expected a file of {facts.size_bytes} bytes")
        size = path.stat().st_size
        if size != facts.size_bytes:
            raise CheckpointError(f"{path}: expected {facts.size_bytes} bytes, found {size}; it was cut or changed")
    if not hashes:
        return
    largest_first = sorted(manifest.files, key=lambda name: -manifest.files[name].size_bytes)
    own = largest_first[share[0] :: share[1]]
    with ThreadPoolExecutor(min(HASHERS, len(own)) or 1) as pool:
        for name, found in zip(own, pool.map(lambda name: _hash_of(folder / name), own), strict=True):
            expected = manifest.files[name].sha256
            if found != expected:
                raise CheckpointError(f"{folder / name}: expected sha256 {expected}, found {found}; its content was damaged")


def _hash_of(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
