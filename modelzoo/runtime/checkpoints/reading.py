"""Reading a training checkpoint: any box of its tensors, from whichever files hold it, and the JSON state beside them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelzoo.errors import CheckpointError
from modelzoo.runtime.checkpoints.manifest import MANIFEST, Manifest
from modelzoo.runtime.checkpoints.tensors import TensorReader, TensorSpec

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
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path / STATE}: not a readable state: {error}") from error
    if found != manifest.generation or not isinstance(state, dict):
        raise CheckpointError(f"{path / STATE}: generation: expected {manifest.generation}, found {found}; of another save")
    return state


class StateReader:
    """Reads tensors of a checkpoint by kind and name, put together from their parts; not thread-safe.

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

    def of(self, kind: str) -> Callable[..., None]:
        """Return the function that fills a tensor with a box of one of a kind."""
        return lambda name, target, box=None: self.fill(kind, name, target, box)

    def read(self, kind: str, name: str) -> Tensor:
        """Return a whole tensor.

        Raises:
            CheckpointError: The files do not hold all of it.
        """
        spec = self.specs(kind)[name]
        result = torch.empty(spec.shape, dtype=spec.dtype)
        self.fill(kind, name, result)
        return result

    def fill(self, kind: str, name: str, target: Tensor, box: Sequence[slice] | None = None) -> None:
        """Copy a box of a tensor into `target`, each value once, from the parts that hold it.

        Args:
            kind: Of the tensor.
            name: Of the tensor.
            target: A plain tensor of the box's size and the stored dtype.
            box: One slice a dimension, within the whole; None is the whole.

        Raises:
            CheckpointError: The files do not hold all of it, or with another shape or dtype.
        """
        stored = self._manifest.tensors[f"{kind}/{name}"]
        wanted = [slice(0, length) for length in stored.shape] if box is None else list(box)
        filled = 0
        for part in stored.parts:
            common = [
                slice(max(side.start, begin), min(side.stop, begin + length))
                for side, begin, length in zip(wanted, part.offset, part.shape, strict=True)
            ]
            if any(side.start >= side.stop for side in common):
                continue
            within = [slice(side.start - begin, side.stop - begin) for side, begin in zip(common, part.offset, strict=True)]
            piece = self._file(part.file).box(part.key, part.shape, within)
            if piece.dtype != target.dtype:
                raise CheckpointError(f"{self._path / part.file}: {name}: expected {target.dtype}, found {piece.dtype}")
            target[tuple(slice(c.start - w.start, c.stop - w.start) for c, w in zip(common, wanted, strict=True))].copy_(piece)
            filled += piece.numel()
        if filled != target.numel():
            raise CheckpointError(f"{self._path}: {kind}/{name}: expected {target.numel()} values in its parts, found {filled}")

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
