"""A folder with an adapter and no model of its own: its base is found by what the adapter's config says."""

from pathlib import Path
from typing import Any

from modelzoo import hub
from modelzoo.adapters import AdapterFile, is_adapter_folder, read_adapter
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.hub.files import CONFIG_FILE

__all__ = ["find_base"]

LABELLED = ("classification", "token_classification")


def find_base(folder: Path, **options: Any) -> tuple[Path, AdapterFile, dict[str, Any]]:
    """Find the base of an adapter's folder.

    Args:
        folder: With adapter_config.json.
        **options: Those of `modelzoo.from_pretrained`, for the base.

    Returns:
        The base's folder, the adapter, and the options with which the base has its head.

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
        options |= _labels(folder, file, task)
    return base, file, options


def _labels(folder: Path, file: AdapterFile, task: Any) -> dict[str, Any]:
    """Return the labels of the adapter's own head: named in its config.json, or counted in its tensors."""
    if (folder / CONFIG_FILE).is_file():
        source = hub.read_config(folder)
        values = converter_for(source["model_type"]).read_config(source, task)
        names = values.get("label_names")
        return {"label_names": names} if names else {"num_labels": values["num_labels"]}
    count = file.num_labels()
    return {} if count is None else {"num_labels": count}
