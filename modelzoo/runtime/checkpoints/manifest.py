"""The manifest of a training checkpoint: which files belong to it, their hashes, and where every tensor lies in them.

It is written last, so a folder without a readable manifest is no checkpoint.
"""

import hashlib
import json
import platform
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
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
        values = {"format": FORMAT, "version": VERSION, **json.loads(json.dumps(asdict(self)))}
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
        rest["files"] = {name: WrittenFile(**facts) for name, facts in rest["files"].items()}
        rest["tensors"] = {name: _stored(facts) for name, facts in rest["tensors"].items()}
        for name in rest["files"]:
            if name != Path(name).name or name in {"", ".", ".."}:
                raise CheckpointError(f"files: {name!r}: expected a plain file name")
        return cls(**rest)


def _stored(facts: Mapping[str, Any]) -> StoredTensor:
    parts = tuple(Part(part["file"], part["key"], tuple(part["offset"]), tuple(part["shape"])) for part in facts["parts"])
    return StoredTensor(tuple(facts["shape"]), facts["dtype"], parts)


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(manifest: Manifest) -> str:
    """Return the text of the manifest file; the caller writes it, durably and last."""
    return json.dumps(manifest.to_json(), indent=1) + "\n"


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
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so the save was not completed") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable manifest: {type(error).__name__}: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


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
