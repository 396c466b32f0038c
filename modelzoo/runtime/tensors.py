"""Safetensors files written one tensor at a time, so that saving never holds a second copy of the model.

The library's own writer wants every tensor in memory at once. The format is small: eight bytes of header length, a JSON header with
dtype, shape and byte range of each tensor, then the bytes. Reading goes through the library.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modelzoo.errors import CheckpointError

__all__ = ["TensorReader", "TensorSpec", "WrittenFile", "file_sha256", "specs_of", "write_tensors"]

DTYPE_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

READ_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor before it is gathered."""

    shape: tuple[int, ...]
    """Of the whole tensor, not of one rank's part."""
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        count = 1
        for length in self.shape:
            count *= length
        return count * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """As it stands in a manifest: `float32`."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file on disk as it was written."""

    size_bytes: int
    sha256: str


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return the shape (of the whole, for a sharded one) and dtype of each tensor."""
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def write_tensors(
    path: Path, specs: Mapping[str, TensorSpec], tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]
) -> WrittenFile:
    """Write a safetensors file from tensors that come one by one, durably, and return its size and hash.

    Args:
        path: A new file.
        specs: Name, shape and dtype of every tensor, in the order in which they come.
        tensors: The tensors in that order; each is written before the next one is asked for.
        metadata: Texts for the header.

    Raises:
        CheckpointError: A tensor is not the announced one.
        OSError: The disk is full, or the folder cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, spec in specs.items():
        end = offset + spec.size_bytes
        header[name] = {"dtype": DTYPE_CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            digest.update(piece)
            file.write(piece)
        expected = iter(specs.items())
        for name, tensor in tensors:
            _check_announced(path, name, tensor, next(expected, None))
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
        missing = next(expected, None)
        if missing is not None:
            raise CheckpointError(f"{path.name}: {missing[0]}: announced, but did not come")
        file.flush()
        os.fsync(file.fileno())
        return WrittenFile(file.tell(), digest.hexdigest())


def _check_announced(path: Path, name: str, tensor: Tensor, expected: tuple[str, TensorSpec] | None) -> None:
    found = (name, TensorSpec(tuple(tensor.shape), tensor.dtype))
    if found != expected:
        raise CheckpointError(f"{path.name}: expected {expected}, found {found}; the model changed while it was saved")


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hex, reading it in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


class TensorReader:
    """The tensors of one safetensors file, read when asked for, whole or by rows.

    Args:
        path: The file.
        generation: The id that its header must carry, so that files of two saves are never mixed.

    Raises:
        CheckpointError: No such file, not a safetensors file, or of another save.
    """

    def __init__(self, path: Path, generation: str) -> None:
        self._path = path
        open_file: Any = safe_open  # without annotations of its own
        try:
            self._file = open_file(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error
        found = (self._file.metadata() or {}).get("generation")
        if found != generation:
            raise CheckpointError(f"{path}: generation: expected {generation}, found {found}; it belongs to another save")

    def rows(self, key: str, shape: Sequence[int], start: int | None = None, end: int | None = None) -> Tensor:
        """Return rows `start` to `end` of a tensor, the whole of it without them.

        Args:
            key: Its name in the file.
            shape: What it must have in the file.
            start: First row.
            end: One after the last row.

        Raises:
            CheckpointError: No such tensor, or another shape.
        """
        try:
            part = self._file.get_slice(key)
            if list(part.get_shape()) != list(shape):
                raise CheckpointError(f"{self._path}: {key}: expected shape {list(shape)}, found {list(part.get_shape())}")
            tensor: Tensor = part[start:end] if start is not None else self._file.get_tensor(key)
            return tensor
        except SafetensorError as error:
            raise CheckpointError(f"{self._path}: {key}: {error}") from error
