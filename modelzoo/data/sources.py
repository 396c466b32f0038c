"""Rows from a file, a folder of files, or a data set's name, as a list of dicts.

Everything is read as data: no loading script, no pickle. Errors name the file and the line.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from modelzoo.data.hub_sets import read_hub_rows
from modelzoo.data.text_files import iterate_jsonl, read_json, read_jsonl, read_table, read_text
from modelzoo.errors import DataError, closest

__all__ = ["Split", "iterate_rows", "read_rows"]

Split = Literal["train", "validation", "test"]

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".conll", ".bio")
_SHARD = re.compile(r"(?P<name>[a-z]+)-\d{5}-of-(?P<total>\d{5})")
# What people call the files of a split.
_SPLIT_NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}


def read_rows(
    source: str | Path, *, split: Split | None = None, max_rows: int | None = None, revision: str | None = None
) -> list[dict[str, Any]]:
    """Read the rows of a data set.

    Args:
        source: A .jsonl, .ndjson, .json, .csv, .tsv or .parquet file, a .txt file (a text, which is one row), or a .conll or .bio
            file (a word a line, see `read_conll`); a folder with one such file per split (or its shards, as the hub has
            them); or the name of a data set for `datasets`: "boolq", "owner/name", "owner/name:config", "super_glue/boolq". What
            exists on disk wins.
        split: The part to read. Required for a folder and for a name; a file is one split already.
        max_rows: Only the first rows, at least 1; None for all.
        revision: Commit or tag of a data set on the hub; only for names.

    Returns:
        At least one row.

    Raises:
        DataError: If nothing is found, a line cannot be read, or there is no row.
    """
    if max_rows is not None and max_rows < 1:
        raise DataError(f"expected max_rows of at least 1, found {max_rows}")
    path = Path(source).expanduser()
    name = str(path)
    if path.is_dir():
        rows: list[dict[str, Any]] = []
        for file in _split_files(path, split):
            rows += _read_file(file, None if max_rows is None else max_rows - len(rows))
    elif path.is_file():
        rows = _read_file(path, max_rows)
    elif _looks_like_path(str(source)):
        raise _missing_file(path)
    else:
        name = str(source)
        if split is None:
            raise DataError(f"{name}: expected a split (train, validation or test) beside a data set's name, found none")
        rows = read_hub_rows(name, split=split, max_rows=max_rows, revision=revision)
    if not rows:
        raise DataError(f"{name}: expected at least one row, found none")
    return rows


def iterate_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; JSON lines and parquet are read piece by piece, all other forms whole.

    Raises:
        DataError: As `read_rows`, when the row's turn has come.
    """
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        yield from iterate_jsonl(path)
    elif suffix == ".parquet":
        from modelzoo.data.parquet import iterate_parquet

        yield from iterate_parquet(path)
    else:
        yield from _read_file(path, None)


def _read_file(path: Path, max_rows: int | None) -> list[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return read_jsonl(path, max_rows)
    if suffix == ".json":
        return read_json(path, max_rows)
    if suffix in (".csv", ".tsv"):
        return read_table(path, max_rows)
    if suffix == ".parquet":
        from modelzoo.data.parquet import read_parquet

        return read_parquet(path, max_rows)
    if suffix in (".conll", ".bio"):
        from modelzoo.data.conll import read_conll

        return read_conll(path, max_rows)
    if suffix == ".txt":
        return read_text(path)
    raise DataError(f"{path}: expected a name ending in {', '.join(_SUFFIXES)}, found {path.suffix or 'no ending'!r}")


def _split_files(folder: Path, split: str | None) -> list[Path]:
    """Return the file of the split in the folder, or its shards (train-00000-of-00002.parquet, ...) in order."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if split is None:
        raise DataError(f"{folder}: expected a split (train, validation or test) beside a folder, found none")
    for name in _SPLIT_NAMES[split]:
        found = [path for path in files if path.stem.lower() == name]
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise DataError(f"{folder}: expected one file for split {split}, found {names}; set data.{split}=FILE")
        found = found or _shards(folder, [path for path in files if path.name.startswith(f"{name}-")], split)
        if found:
            return found
    names = ", ".join(path.name for path in files) or "no data file"
    wanted = " or ".join(f"{name}.*" for name in _SPLIT_NAMES[split])
    raise DataError(f"{folder}: expected {wanted} for split {split}, found {names}; set data.{split}=FILE")


def _shards(folder: Path, files: list[Path], split: str) -> list[Path]:
    """Return the files that are named as shards, all of them or none."""
    shards = [(match, path) for path in files if (match := _SHARD.fullmatch(path.stem))]
    totals = {match["total"] for match, _ in shards}
    if len(totals) > 1 or (shards and len(shards) != int(min(totals))):
        names = ", ".join(path.name for _, path in shards[:5])
        wanted = f"{min(totals).lstrip('0')} files {shards[0][0]['name']}-*-of-{min(totals)} for split {split}"
        raise DataError(f"{folder}: expected {wanted}, found {len(shards)} ({names}); copy the missing ones")
    return [path for _, path in shards]


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or Path(source).suffix.lower() in _SUFFIXES or source.count("/") > 1


def _missing_file(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"{path}: expected a data file, but the folder {path.parent} does not exist")
    names = [item.name for item in path.parent.iterdir()]
    similar = closest(path.name, names)
    hint = f"did you mean {path.parent / similar[0]}?" if similar else f"the folder {path.parent} has no file of that name"
    return DataError(f"{path}: expected a data file, found nothing; {hint}")
