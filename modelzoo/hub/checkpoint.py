"""A checkpoint's files seen as one set of named tensors, read one by one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from modelzoo.converters import TensorInfo
from modelzoo.errors import CheckpointError, listing
from modelzoo.hub.files import check_inside, read_json, shown
from modelzoo.hub.pickle_file import read_pickle
from modelzoo.hub.safetensors_file import SafetensorsFile

__all__ = ["Checkpoint", "open_checkpoint", "open_pickle"]

_INDEX_BYTES = 32 * 2**20
_SAFETENSORS = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.pt")

Read = Callable[[Sequence[slice] | None], Tensor]


class Checkpoint:
    """The tensors of a model folder. Use it as a context manager, or call `close`.

    Attributes:
        folder: The model folder.
        tensors: Shape, dtype and file name of each tensor, by key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, TensorInfo] = {}
        self._reads: dict[str, Read] = {}
        self._open: list[SafetensorsFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; tensors that were read stay valid."""
        for file in self._open:
            file.close()
        self._reads.clear()

    def read(self, key: str, index: Sequence[slice] | None = None) -> Tensor:
        """Read a tensor, or a box of it, into memory that no file stands behind.

        Args:
            key: One of `tensors`.
            index: One slice (step 1, within the shape) for each dim, or None for all of it.

        Raises:
            CheckpointError: There is no such tensor, the file has become shorter, or the disk fails.
        """
        if key not in self._reads:
            raise CheckpointError(
                f"{self.folder}: {shown(key)}: expected a tensor of this checkpoint, found nothing open by that name"
            )
        return self._reads[key](index)

    def _add_safetensors(self, name: str) -> list[str]:
        file = SafetensorsFile(check_inside(self.folder, name), str(self.folder / name))
        self._open.append(file)
        for key, entry in file.entries.items():
            self._add(key, TensorInfo(entry.shape, entry.dtype, name), _safetensors_read(file, key))
        return list(file.entries)

    def _add_pickle(self, name: str) -> list[str]:
        tensors, mapped = read_pickle(check_inside(self.folder, name), str(self.folder / name))
        for key, tensor in tensors.items():
            self._add(key, TensorInfo(tuple(tensor.shape), tensor.dtype, name), _pickle_read(tensor, mapped))
        return list(tensors)

    def _add(self, key: str, info: TensorInfo, read: Read) -> None:
        if key in self.tensors:
            raise CheckpointError(f"{self.folder / info.file}: {shown(key)}: expected once, found also in {self.tensors[key].file}")
        self.tensors[key] = info
        self._reads[key] = read


def _safetensors_read(file: SafetensorsFile, key: str) -> Read:
    return lambda index: file.read(key, index)


def _pickle_read(tensor: Tensor, mapped: bool) -> Read:
    """Return a reader that copies, unless the tensor has memory of its own that fits it exactly."""
    own = not mapped and tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()

    def read(index: Sequence[slice] | None) -> Tensor:
        part = tensor if index is None else tensor[tuple(index)]
        return part if own and index is None else part.contiguous().clone()

    return read


def open_checkpoint(folder: Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open the weights of a model folder: names, shapes and dtypes are checked, no safetensors value is read yet.

    model.safetensors, or model.safetensors.index.json with its shards; without them, and only with `allow_pickle`,
    pytorch_model.bin or its index with its shards, or ModelCenter's pytorch_model.pt (for the families whose names are
    ModelCenter's). Every name in an index is checked before any file is opened.

    Args:
        folder: The model folder.
        allow_pickle: Read an old .bin file if there is no safetensors file. It is read by torch's restricted reader.

    Raises:
        CheckpointError: There are no weights, two sets of weights, only pickles without `allow_pickle`, or a file is not as its
            format and its index say.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a model folder, found {'a file' if folder.exists() else 'nothing'}")
    checkpoint = Checkpoint(folder)
    try:
        if _exists(folder, _SAFETENSORS):
            _fill(checkpoint, _SAFETENSORS, checkpoint._add_safetensors)
        elif pickles := [name for name in _PICKLES if _exists(folder, name)]:
            _require_permission(folder, pickles[0], allow_pickle)
            _fill(checkpoint, pickles[0], checkpoint._add_pickle)
        else:
            raise CheckpointError(f"{folder}: expected {_SAFETENSORS} or {_SAFETENSORS}.index.json, found no weights")
    except CheckpointError:
        checkpoint.close()
        raise
    return checkpoint


def open_pickle(folder: Path, name: str, *, allow_pickle: bool = False) -> Checkpoint:
    """Open one pickled file of tensors by its name, as other libraries keep them; a folder with safetensors has no need of it.

    Args:
        folder: The folder.
        name: The file's name in it.
        allow_pickle: Must be on: the file is read by torch's restricted reader.

    Raises:
        CheckpointError: As `open_checkpoint`.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a model folder, found {'a file' if folder.exists() else 'nothing'}")
    check_inside(folder, name)
    if not allow_pickle:
        raise CheckpointError(
            f"{folder / name}: a pickle. If you trust its author, pass allow_pickle=True (--allow-pickle): it is read by torch's "
            "restricted reader and runs no code of the file"
        )
    checkpoint = Checkpoint(folder)
    checkpoint._add_pickle(name)
    return checkpoint


def _exists(folder: Path, name: str) -> bool:
    return any((folder / file).exists() or (folder / file).is_symlink() for file in (name, f"{name}.index.json"))


def _require_permission(folder: Path, name: str, allow_pickle: bool) -> None:
    if not allow_pickle:
        raise CheckpointError(
            f"{folder}: expected {_SAFETENSORS}, found only {name}, which is a pickle. If you trust its author, "
            "pass allow_pickle=True: it is read by torch's restricted reader and runs no code of the file"
        )


def _fill(checkpoint: Checkpoint, name: str, add: Callable[[str], list[str]]) -> None:
    """Add the single file of that name, or the shards of its index."""
    folder, index = checkpoint.folder, f"{name}.index.json"
    if not ((folder / index).exists() or (folder / index).is_symlink()):
        add(name)
        return
    weight_map = _read_index(folder, index, name.rsplit(".", 1)[1])
    if (folder / name).exists() and name not in weight_map.values():
        raise CheckpointError(
            f"{folder}: expected one set of weights, found both {name} and {index}. Remove the one that is out of date"
        )
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        check_inside(folder, shard)
    problems = []
    for shard in shards:
        held = set(add(shard))
        said = {key for key, file in weight_map.items() if file == shard}
        problems += [f"{index}: {shown(key)}: expected in {shard}, found nothing there" for key in sorted(said - held)]
        problems += [f"{shard}: {shown(key)}: expected to stand in {index}, found only in the file" for key in sorted(held - said)]
    if problems:
        raise CheckpointError(f"{folder}: the index and its files do not agree:\n{listing(problems)}")


def _read_index(folder: Path, index: str, ending: str) -> dict[str, str]:
    content = read_json(folder, index, _INDEX_BYTES)
    where = folder / index
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        found = "nothing" if "weight_map" not in content else shown(weight_map)
        raise CheckpointError(f"{where}: weight_map: expected an object of file names by key, found {found}")
    if not isinstance(content.get("metadata", {}), dict):
        raise CheckpointError(f"{where}: metadata: expected an object, found {shown(content['metadata'])}")
    problems = []
    for key, name in weight_map.items():
        plain = isinstance(name, str) and 0 < len(name) <= 255 and not set(name) & {"/", "\\", "\0"}
        if not plain or not name.endswith(f".{ending}") or name.startswith("."):
            problems.append(
                f"{where}: weight_map: {shown(key)}: expected a plain name ending in .{ending}, found {shown(repr(name))}"
            )
    if problems:
        raise CheckpointError(f"{where}: no file was opened, because of these names:\n{listing(problems)}")
    return weight_map
