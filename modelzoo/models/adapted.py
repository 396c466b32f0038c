"""A folder with an adapter and no model of its own: its base is found by what the adapter's config says."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelzoo import hub
from modelzoo.adapters import AdapterFile, is_adapter_folder, merge_adapter, read_adapter, save_adapter
from modelzoo.converters import Task, converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.hub.files import CONFIG_FILE, TOKENIZER_FILES
from modelzoo.models.auto import find_pretrained, from_pretrained, model_class

if TYPE_CHECKING:
    from modelzoo.models.model import Model
    from modelzoo.models.pretrained import Pretrained

__all__ = ["find_adapted", "tokenizer_folder", "write_merged", "write_peft"]

LABELLED = ("classification", "token_classification")


def find_adapted(folder: Path, **options: Any) -> "Pretrained[Model]":
    """Find the base of an adapter's folder; loaded, it is the base with the adapter.

    Args:
        folder: With adapter_config.json.
        **options: Those of `modelzoo.from_pretrained`, for the base.

    Raises:
        CheckpointError: The adapter or its base is missing, broken, or the two do not fit.
        ConfigError: The adapter does not say what its base or its task is, or needs something that is not built.
    """
    file = read_adapter(folder)
    if not file.base:
        raise ConfigError(
            f"{folder}: adapter_config.json: base_model_name_or_path: expected the base's folder or hub id, found nothing"
        )
    try:
        places = {name: options[name] for name in ("token", "cache_dir", "local_files_only", "allow_pickle") if name in options}
        base = hub.resolve(file.base, revision=options.pop("revision", None) or file.values.get("revision"), **places)
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder}: the base of this adapter is missing; put it back, or change base_model_name_or_path in adapter_config.json "
            f"to where it is\n  {error}"
        ) from error
    if is_adapter_folder(base):
        raise ConfigError(f"{folder}: its base {base} holds an adapter too, expected a model; merge that one first")
    options["task"] = task = options.get("task") or file.task
    if task in LABELLED and options.get("num_labels") is None and options.get("label_names") is None:
        options |= _labels(folder, base, file, task)
    return replace(find_pretrained(base, **options), adapter=file)


def _labels(folder: Path, base: Path, file: AdapterFile, task: Task) -> dict[str, Any]:
    """Return the labels of the adapter's own head: named in its config.json, or counted in its tensors."""
    if (folder / CONFIG_FILE).is_file():
        source = hub.read_config(folder)
        values = converter_for(model_class(source["model_type"]).family).read_config(source, task)
        names = values.get("label_names")
        return {"label_names": names} if names else {"num_labels": values["num_labels"]}
    count = file.num_labels()
    return {} if count is None else {"num_labels": count}


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
    overwrite: bool = False,
) -> Path:
    """Write an adapter and its base as one plain model folder.

    Sums are taken in float32 and rounded once.

    Args:
        folder: Of the adapter.
        target: As of `Model.save_pretrained`, and so are the others.
        dtype: Of the file; None for that of the base's files.
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
    merge_adapter(model)
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
