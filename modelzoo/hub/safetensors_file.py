"""Reading and writing one safetensors file, each byte checked, no memory mapped.

The format: 8 bytes of header length, a JSON header, the tensors' bytes. The reader is stricter than the safetensors library (which
takes duplicate keys and huge empty shapes), names the file and the tensor in every error, and reads into memory of its own: the
library's tensors are views of a mapped file, and a process that touches them after the file was cut short is killed by SIGBUS.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelzoo.errors import CheckpointError
from modelzoo.hub.files import parse_json, shown

__all__ = ["DTYPE_NAMES", "Entry", "SafetensorsFile", "header_of", "write_safetensors"]

_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in _DTYPES.items()}
"""The format's name of each dtype that can be stored."""

# The library puts the tensors into this order of its dtypes, last first.
_LIBRARY_ORDER = (
    "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip

# About 80,000 tensors. The format allows 100 MB, which takes the library 8 s and 450 MiB to open.
_POINTER = b"version https://git-lfs"
_HEADER_BYTES = 8 * 2**20
_LARGEST_SIZE = 2**32
_LARGEST_READ = 2**30
_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies.

    Attributes:
        shape: Its sizes.
        dtype: Its element type.
        begin: Offset of its first byte in the file.
        end: Offset after its last byte.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: int
    end: int


class SafetensorsFile:
    """One open file whose header has been checked.

    Attributes:
        entries: Where each tensor lies, by key.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Open the file and check its header.

        Args:
            path: The real path.
            name: What messages call the file.

        Raises:
            CheckpointError: The file is cut short, too large in its header, or any part of the header is not as the format says.
        """
        self.name = name
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be opened: {error.strerror}") from None
        try:
            self.entries = _read_header(self._descriptor, name)
        except CheckpointError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, key: str, index: Sequence[slice] | None = None) -> Tensor:
        """Read a tensor, or a box of it, into new memory.

        Args:
            key: One of `entries`.
            index: One slice (step 1, within the shape) for each dim, or None for all of it.

        Raises:
            CheckpointError: The file has become shorter, or the disk fails.
        """
        entry = self.entries[key]
        box = [slice(0, size) for size in entry.shape] if index is None else list(index)
        shape = [part.stop - part.start for part in box]
        result = torch.empty(shape, dtype=entry.dtype)
        if not result.numel():
            return result
        if shape[1:] == list(entry.shape[1:]):
            row_bytes = (entry.end - entry.begin) // max(entry.shape[0], 1) if shape else 0
            self._fill(result, entry.begin + (box[0].start * row_bytes if box else 0), key)
            return result
        rows = max(1, _CHUNK_BYTES // max(1, (entry.end - entry.begin) // entry.shape[0]))
        for start in range(box[0].start, box[0].stop, rows):
            stop = min(start + rows, box[0].stop)
            block = self.read(key, [slice(start, stop), *(slice(0, size) for size in entry.shape[1:])])
            result[start - box[0].start : stop - box[0].start] = block[(slice(None), *box[1:])]
        return result

    def _fill(self, tensor: Tensor, offset: int, key: str) -> None:
        buffer = tensor.reshape(-1).view(torch.uint8).numpy().data
        while buffer:
            try:
                count = os.preadv(self._descriptor, [buffer[:_LARGEST_READ]], offset)
            except OSError as error:
                raise CheckpointError(f"{self.name}: {shown(key)}: cannot be read: {error.strerror}") from None
            if count == 0:
                raise CheckpointError(f"{self.name}: {shown(key)}: expected {len(buffer)} more bytes, found the end of the file")
            buffer, offset = buffer[count:], offset + count


def _read_header(descriptor: int, name: str) -> dict[str, Entry]:
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8:
        raise CheckpointError(f"{name}: expected a safetensors file, found {size} bytes. Copy or download the file again")
    if os.pread(descriptor, len(_POINTER), 0) == _POINTER:
        raise CheckpointError(
            f"{name}: expected weights, found a pointer of Git LFS to them; fetch them where it was cloned: git lfs pull"
        )
    if length > _HEADER_BYTES:
        raise CheckpointError(
            f"{name}: expected a header of at most {_HEADER_BYTES} bytes, found {length}; is it a safetensors file?"
        )
    if 8 + length > size:
        raise CheckpointError(f"{name}: expected a header of {length} bytes, found {size - 8}: the file is cut short")
    text = os.pread(descriptor, length, 8)
    if not text.startswith(b"{"):
        raise CheckpointError(f"{name}: expected a header that begins with {{, found {shown(text[:8])}")
    header = parse_json(text, name)
    _check_metadata(header.pop("__metadata__", {}), name)
    entries = {key: _entry(key, value, 8 + length, name) for key, value in header.items()}
    _check_layout(entries, 8 + length, size, name)
    return entries


def _check_metadata(metadata: object, name: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{name}: __metadata__: expected an object of strings, found {shown(metadata)}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(key: str, value: object, start: int, name: str) -> Entry:
    where = f"{name}: {shown(key)}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: expected dtype, shape and data_offsets, found {shown(value)}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(f"{where}: dtype: expected one of {', '.join(_DTYPES)}, found {shown(dtype)}")
    if not isinstance(shape, list) or len(shape) > 16 or not all(_whole(size) and size < _LARGEST_SIZE for size in shape):
        raise CheckpointError(f"{where}: shape: expected at most 16 sizes from 0 to below 2^32, found {shown(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)) or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets: expected a beginning and an end, found {shown(offsets)}")
    needed = math.prod(shape) * _DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise CheckpointError(f"{where}: expected {needed} bytes for {dtype} {shape}, found data_offsets {offsets}")
    return Entry(tuple(shape), _DTYPES[dtype], start + offsets[0], start + offsets[1])


def _check_layout(entries: Mapping[str, Entry], start: int, size: int, name: str) -> None:
    """Check that the tensors fill the file, one after the other, without a hole or an overlap."""
    at = start
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            kind = "a hole" if entry.begin > at else "an overlap"
            raise CheckpointError(
                f"{name}: {shown(key)}: expected its bytes from offset {at - start}, found {kind}: {entry.begin - start}"
            )
        at = entry.end
    if at != size:
        kind = "the file is cut short" if at > size else "bytes that belong to no tensor"
        raise CheckpointError(f"{name}: expected {at} bytes, found {size}: {kind}. Copy or download the file again")


def header_of(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> tuple[bytes, list[str]]:
    """Return a file's header with its length before it, and the keys in the order of their bytes.

    The order is the safetensors library's: larger elements first, then by key, so that the same tensors give the same file.

    Args:
        tensors: dtype and shape by key.
    """
    order = sorted(tensors, key=lambda key: (-_LIBRARY_ORDER.index(DTYPE_NAMES[tensors[key][0]]), key))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key in order:
        dtype, shape = tensors[key]
        end = at + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def write_safetensors(path: Path, tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], values: Iterable[Tensor]) -> None:
    """Write a file tensor by tensor and wait until it is on the disk.

    Args:
        path: The file; it must not exist.
        tensors: dtype and shape by key.
        values: The tensors in the order that `header_of` gives; each is dropped once it is written.

    Raises:
        OSError: The disk is full or fails.
        ValueError: A tensor has another dtype or shape than was said.
    """
    header, order = header_of(tensors)
    with path.open("xb") as file:
        file.write(header)
        for key, value in zip(order, values, strict=True):
            dtype, shape = tensors[key]
            if value.dtype != dtype or tuple(value.shape) != tuple(shape):
                raise ValueError(f"{key}: expected {dtype} {list(shape)}, found {value.dtype} {list(value.shape)}")
            file.write(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
