"""Folders of adapters as others want them: merged into their base, or in PEFT's form again."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from modelzoo.adapters import is_adapter_folder, merge_adapter, read_adapter, save_adapter
from modelzoo.errors import ConfigError
from modelzoo.hub.files import TOKENIZER_FILES
from modelzoo.models.auto import from_pretrained

if TYPE_CHECKING:
    from modelzoo.models.model import Model

__all__ = ["tokenizer_folder", "write_merged", "write_peft"]


def tokenizer_folder(folder: Path, model: "Model") -> Path:
    """Return where the tokenizer of a loaded folder is: there, or beside the base of an adapter.

    Args:
        folder: What was loaded.
        model: What came of it.
    """
    has_own = any((folder / name).is_file() for name in TOKENIZER_FILES)
    return folder if has_own or model.source_folder is None else model.source_folder


def write_merged(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    untied: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write an adapter and its base as one plain model folder.

    Sums are taken in float32 and rounded once.

    Args:
        folder: Of the adapter.
        target: As of `Model.save_pretrained`, and so are the others.
        dtype: Of the file; None for that of the base's files.
        untied: Whether a table that scores the vocabulary as well is written as two, as of `merge_adapter`.
        overwrite: Whether an existing folder is replaced.

    Returns:
        The folder.

    Raises:
        CheckpointError: The adapter or its base cannot be loaded.
        ConfigError: The folder holds no adapter, or one that cannot be merged.
        SaveError: The target is in use, or the disk fails.
    """
    place = _adapter_folder(folder)
    model = from_pretrained(place)
    stored = next(parameter.dtype for name, parameter in model.named_parameters() if not parameter.requires_grad)
    merge_adapter(model, untied=untied)
    model.source_folder = tokenizer_folder(place, model)
    return model.save_pretrained(target, dtype=dtype or stored, overwrite=overwrite)


def write_peft(folder: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write an adapter's folder anew in PEFT's form, once it was loaded on its base.

    Args:
        folder: Of the adapter.
        target: Where to.
        overwrite: Whether an existing folder is replaced.

    Returns:
        The folder.

    Raises:
        CheckpointError: The adapter or its base cannot be loaded.
        ConfigError: The folder holds no adapter.
        SaveError: The target is in use, or the disk fails.
    """
    place = _adapter_folder(folder)
    model = from_pretrained(place)
    file = read_adapter(place)
    revision = file.values.get("revision")
    model.source_folder = tokenizer_folder(place, model)
    return save_adapter(model, target, base=file.base, revision=revision, overwrite=overwrite).folder


def _adapter_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder that holds an adapter."""
    place = Path(folder)
    if not is_adapter_folder(place):
        raise ConfigError(f"{place}: expected an adapter (adapter_config.json), found none; a whole model needs no merging")
    return place
