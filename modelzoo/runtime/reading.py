"""Reading a training checkpoint: its tensors, whole or by rows, and the JSON state beside them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelzoo.errors import CheckpointError
from modelzoo.runtime.manifest import MANIFEST, Manifest, Part
from modelzoo.runtime.tensors import TensorReader, TensorSpec

__all__ = ["STATE", "StateReader", "read_state"]

STATE = "state.json"


def read_state(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what a checkpoint holds beside its tensors.

    Raises:
        CheckpointError: The file is missing, damaged or of another save.
    """
    try:
        values = json.loads((path / STATE).read_text(encoding="utf-8"))
        found, state = values["generation"], values["state"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: not a readable state: {error}") from error
    if found != manifest.generation or not isinstance(state, dict):
        raise CheckpointError(f"{path / STATE}: generation: expected {manifest.generation}, found {found}; of another save")
    return state


class StateReader:
    """Reads tensors of a checkpoint by kind and name, put together from their parts.

    Args:
        path: The checkpoint.
        manifest: Its manifest.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest
        self._files: dict[str, TensorReader] = {}

    def specs(self, kind: str) -> dict[str, TensorSpec]:
        """Return what is stored of a kind."""
        return {
            name.removeprefix(f"{kind}/"): TensorSpec(stored.shape, self._dtype(name, stored.dtype))
            for name, stored in self._manifest.tensors.items()
            if name.startswith(f"{kind}/")
        }

    def of(self, kind: str) -> Callable[..., Tensor]:
        """Return the function that reads one tensor of a kind."""
        return lambda name, start=None, end=None: self.read(kind, name, start, end)

    def read(self, kind: str, name: str, start: int | None = None, end: int | None = None) -> Tensor:
        """Return a tensor, or its rows from `start` to `end`."""
        stored = self._manifest.tensors[f"{kind}/{name}"]
        spec = TensorSpec(stored.shape, self._dtype(name, stored.dtype))
        if len(stored.parts) == 1 and stored.parts[0].shape == stored.shape:
            whole = stored.parts[0]
            return self._checked(name, spec, self._file(whole.file).rows(whole.key, whole.shape, start, end))
        first, last = (0, stored.shape[0]) if start is None or end is None else (start, end)
        result = torch.empty((last - first, *stored.shape[1:]), dtype=spec.dtype)
        filled = 0
        for part, block in self._blocks(stored.parts, first, last):
            filled += block.numel()
            where = tuple(slice(begin, begin + length) for begin, length in zip(part[1:], block.shape[1:], strict=True))
            result[(slice(part[0] - first, part[0] - first + block.shape[0]), *where)] = self._checked(name, spec, block)
        if filled != result.numel():
            raise CheckpointError(f"{self._path}: {name}: expected {result.numel()} values in its parts, found {filled}")
        return result

    def _blocks(self, parts: tuple[Part, ...], first: int, last: int) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Give the piece of each part that lies in the rows, with its place in the whole tensor."""
        for part in parts:
            begin, end = max(part.offset[0], first), min(part.offset[0] + part.shape[0], last)
            if begin < end:
                rows = self._file(part.file).rows(part.key, part.shape, begin - part.offset[0], end - part.offset[0])
                yield (begin, *part.offset[1:]), rows

    def _checked(self, name: str, spec: TensorSpec, tensor: Tensor) -> Tensor:
        if tensor.dtype != spec.dtype:
            raise CheckpointError(f"{self._path}: {name}: expected {spec.dtype_name}, found {tensor.dtype}")
        return tensor

    def _dtype(self, name: str, text: str) -> torch.dtype:
        dtype = getattr(torch, text, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(f"{self._path}: {name}: dtype {text!r} is not one of torch's")
        return dtype

    def _file(self, name: str) -> TensorReader:
        if name not in self._manifest.files:
            raise CheckpointError(f"{self._path / MANIFEST}: {name!r}: expected one of {sorted(self._manifest.files)}")
        if name not in self._files:
            self._files[name] = TensorReader(self._path / name, self._manifest.generation)
        return self._files[name]
