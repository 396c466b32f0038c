"""The few settings that `modelzoo eval` and `modelzoo predict` take: which rows, and how they are read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelzoo.errors import ConfigError, closest, listing

__all__ = ["RowSettings", "read_row_settings"]

# what is typed -> the argument that it becomes; the long names are those of a recipe
_NAMES = {
    "data": "rows",
    "data.name": "rows",
    "data.validation": "rows",
    "data.test": "rows",
    "split": "split",
    "task": "task",
    "model.task": "task",
    "max_length": "max_length",
    "data.max_length": "max_length",
    "max_rows": "max_rows",
    "data.max_rows": "max_rows",
    "max_new_tokens": "max_new_tokens",
    "evaluation.max_new_tokens": "max_new_tokens",
    "batch_tokens": "batch_tokens",
    "evaluation.batch_tokens": "batch_tokens",
}
_FILES = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".conll", ".bio"}
_NUMBERS = ("max_length", "max_rows", "batch_tokens", "max_new_tokens")


@dataclass(frozen=True)
class RowSettings:
    """Where the rows are and how they are read; None leaves it to the run or to the model.

    Args:
        rows: A file, a folder, or the name of a data set.
        split: Which part of a folder or data set.
        task: Head of the model.
        columns: Column by role.
        max_length: Longest sequence in tokens.
        max_rows: Only the first rows.
        batch_tokens: Most tokens of one forward on one process.
        max_new_tokens: Most tokens that a language model writes for a row.
    """

    rows: str | None = None
    split: str | None = None
    task: str | None = None
    columns: dict[str, str] | None = None
    max_length: int | None = None
    max_rows: int | None = None
    batch_tokens: int = 8192
    max_new_tokens: int | None = None


def read_row_settings(words: Sequence[str], without: Collection[str] = ()) -> RowSettings:
    """Return the settings in words of the command line: data=FILE, columns.label=answer, max_length=128.

    Args:
        words: What was typed beside the command's own options.
        without: Fields of RowSettings that the command does not take.

    Raises:
        ConfigError: A word is not known or has a wrong value; the message lists all of them.
    """
    from modelzoo.config.overrides import parse_overrides

    names = {name: field for name, field in _NAMES.items() if field not in without}
    problems: list[str] = []
    values: dict[str, Any] = {}
    columns: dict[str, str] = {}
    for setting in parse_overrides(words, problems):
        name, value = setting.name, setting.value
        if name in ("columns", "data.columns") and isinstance(value, dict):
            columns |= {str(role): str(column) for role, column in value.items()}
        elif name.removeprefix("data.").startswith("columns."):
            columns[name.rpartition(".")[2]] = str(setting.text)
        elif name not in names:
            known = [*names, "columns.label"]
            near = closest(name, known)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            problems.append(f"{name}: is not known; {hint}")
        elif names[name] in _NUMBERS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            problems.append(f"{name}: expected an integer >= 1; found {value!r}")
        else:
            values[names[name]] = value if names[name] in _NUMBERS else str(setting.text)
    rows = Path(values.get("rows", "")).expanduser()
    if rows.suffix in _FILES and not rows.is_file():
        problems.append(f"data={rows}: there is no such file")
    if problems:
        raise ConfigError(f"cannot be used:\n{listing(problems)}")
    return RowSettings(**values, columns=columns or None)
