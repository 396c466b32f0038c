"""Rows of a data set that has a name on the Hugging Face hub, through `datasets`."""

from typing import Any

from modelzoo.data.parquet import class_names, name_labels
from modelzoo.errors import DataError, closest

__all__ = ["dataset_name", "read_hub_rows"]

# Short names that people type, and where the hub keeps the set today (owner/name, config).
_SHORT_NAMES: dict[str, tuple[str, str | None]] = {
    "boolq": ("aps/super_glue", "boolq"),
    "glue": ("nyu-mll/glue", None),
    "super_glue": ("aps/super_glue", None),
    "superglue": ("aps/super_glue", None),
    "sst2": ("nyu-mll/glue", "sst2"),
    "imdb": ("stanfordnlp/imdb", None),
    "squad": ("rajpurkar/squad", None),
    "squad_v2": ("rajpurkar/squad_v2", None),
    "conll2003": ("eriktks/conll2003", None),
}


def dataset_name(source: str) -> tuple[str, str | None]:
    """Split a data set's name into the hub's name and the config.

    "super_glue/boolq" and "aps/super_glue:boolq" are the same: a colon always separates the config; a slash separates it only
    after a short name that the hub keeps under an owner (glue, super_glue, ...), otherwise it separates owner and name.

    Raises:
        DataError: If the name has another form.
    """
    name, _, config = source.partition(":")
    first, _, second = name.partition("/")
    if first in _SHORT_NAMES and not (second and config):
        hub_name, own_config = _SHORT_NAMES[first]
        return hub_name, second or config or own_config
    if not name or name.count("/") > 1 or any(character.isspace() for character in source):
        raise DataError(f"data.name={source!r}: expected name, owner/name or owner/name:config")
    return name, config or None


def read_hub_rows(source: str, *, split: str, max_rows: int | None = None, revision: str | None = None) -> list[dict[str, Any]]:
    """Read one split of a data set from the hub or from its cache; HF_HUB_OFFLINE and HF_DATASETS_OFFLINE are obeyed.

    Raises:
        DataError: If the set, its config or the split is not to be had; it says which keys take local files instead.
    """
    name, config = dataset_name(source)
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # httpx, hub, datasets and OS errors all mean the same here; the cause stays attached
        raise _unreachable(source, name, config, split, error) from error
    finally:
        if had_bars:
            datasets.enable_progress_bars()
    if max_rows is not None:
        found = found.select(range(min(max_rows, len(found))))
    return name_labels(found.to_list(), class_names(found.features), source)


def _unreachable(source: str, name: str, config: str | None, split: str, error: Exception) -> DataError:
    where = name if config is None else f"{name}, config {config}"
    typed = source.partition("/")[0].partition(":")[0]
    similar = [] if typed in _SHORT_NAMES else closest(typed, _SHORT_NAMES)
    hint = f" did you mean {similar[0]}?" if similar else ""
    reason = " ".join(str(error).split())
    reason = reason if len(reason) <= 300 else f"{reason[:297]}..."
    return DataError(
        f"data set {source!r}: expected split {split} of {where} on the hub or in its cache, found {type(error).__name__}: "
        f"{reason}.{hint}\n  without the hub, give files: data.train=FILE data.validation=FILE (.jsonl, .csv, .tsv, .parquet)"
    )
