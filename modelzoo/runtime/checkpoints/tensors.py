"""Safetensors files written straight from the tensors' memory, so that saving never holds a second copy of the model.

The library's own writer wants the bytes of all tensors at once, and gives no hash. The format is small: eight bytes of header
length, a JSON header with dtype, shape and byte range of each tensor, then the bytes. Reading goes through the library.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modelzoo.errors import CheckpointError
from modelzoo.runtime.checkpoints.durable import DurableFile, WrittenFile
from modelzoo.sharded import local_values

__all__ = ["DTYPE_CODES", "TensorReader", "TensorSpec", "specs_of", "write_tensors"]

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
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor without its values."""

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


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return the shape (of the whole, for a sharded one) and dtype of each tensor."""
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> WrittenFile:
    """Write a safetensors file durably and return its size and hash.

    Nothing is copied but what lies on an accelerator, or is away (see `modelzoo.sharded.Away`) and is read when its turn comes.

    Args:
        path: A new file.
        tensors: Plain tensors, in the order in which they are written.
        metadata: Texts for the header.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, spec in specs_of(tensors).items():
        end = offset + spec.size_bytes
        header[name] = {"dtype": DTYPE_CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with DurableFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(local_values(tensor).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return file.facts


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

    def box(self, key: str, shape: Sequence[int], box: Sequence[slice]) -> Tensor:
        """Return a box of a tensor, the rows of which are read without the others.

        Args:
            key: Its name in the file.
            shape: What it must have in the file.
            box: One slice a dimension, within the shape.

        Raises:
            CheckpointError: No such tensor, or another shape.
        """
        try:
            part = self._file.get_slice(key)
            if list(part.get_shape()) != list(shape):
                raise CheckpointError(f"{self._path}: {key}: expected shape {list(shape)}, found {list(part.get_shape())}")
            if all(side == slice(0, length) for side, length in zip(box, shape, strict=True)):
                tensor: Tensor = self._file.get_tensor(key)
                return tensor
            rows, *others = box
            tensor = part[rows.start : rows.stop]
            return tensor[(slice(None), *others)]
        except SafetensorError as error:
            raise CheckpointError(f"{self._path}: {key}: {error}") from error
