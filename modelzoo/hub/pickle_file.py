"""Reading an old pytorch_model.bin: a pickle, and so only when asked for by name, by torch's restricted reader."""

import pickle
import struct
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from modelzoo.errors import CheckpointError
from modelzoo.hub.files import shown

__all__ = ["read_pickle"]

# What torch's reader lets through when the bytes lead it astray; a fuzz test keeps the list complete.
_DAMAGE = (
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    MemoryError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
)

# Files from torch 1.6 on; only these can be mapped, and torch tells them by the same bytes.
_ZIP = b"PK\x03\x04"

# CVE-2026-24747: the restricted reader of earlier versions can be made to write outside its memory.
_OLDEST_TORCH = (2, 10)


def read_pickle(path: Path, name: str) -> tuple[dict[str, Tensor], bool]:
    """Read the tensors of a pickled state dict.

    Args:
        path: The real path.
        name: What messages call the file.

    Returns:
        The tensors by key, and whether they are views of the mapped file (which the caller must copy).

    Raises:
        CheckpointError: torch is older than 2.10, the file is not a pickled state dict, it is cut short, or it holds anything but
            tensors.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _OLDEST_TORCH:
        raise CheckpointError(f"{name}: reading a .bin file safely needs torch 2.10 or later, found {torch.__version__}")
    try:
        with path.open("rb") as file:
            mapped = file.read(4) == _ZIP
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{name}: expected a pickle of tensors alone, found one that needs other code or is damaged; nothing of it was run. "
            "Ask its author for a safetensors file"
        ) from None
    except _DAMAGE as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{name}: expected a torch state dict, found a damaged or foreign file: {shown(reason)}") from None
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{name}: expected tensors by name, found {type(loaded).__name__}")
    for key, value in loaded.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{name}: {shown(key)}: expected a tensor, found {type(value).__name__}. If the weights lie in it, take them out"
            )
        if value.layout != torch.strided or value.is_quantized:
            raise CheckpointError(f"{name}: {shown(key)}: expected a dense tensor, found {value.layout}")
    return {key: value.detach() for key, value in loaded.items()}, mapped
