"""Rows of parquet files, with class labels turned into their names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelzoo.errors import DataError

__all__ = ["class_names", "iterate_parquet", "name_labels", "read_parquet"]


def read_parquet(path: Path, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a parquet file; label ids become names where the file was written by `datasets` with a class label.

    Raises:
        DataError: If the file is no parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: expected a parquet file, found: {error}") from error
    rows: list[dict[str, Any]] = (table if max_rows is None else table.slice(0, max_rows)).to_pylist()
    try:
        features = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return rows
    names = {key: value["names"] for key, value in features.items() if isinstance(value, dict) and "names" in value}
    return name_labels(rows, names, str(path))


def iterate_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file as they stand in it, label ids included, a portion in memory at a time.

    Raises:
        DataError: If the file is no parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: expected a parquet file, found: {error}") from error


def class_names(features: Any) -> dict[str, list[str]]:
    """Return the names of each column that is a class label, or a list of them, from `datasets` features."""
    found = {}
    for column, feature in features.items():
        inner = getattr(feature, "feature", feature)
        if hasattr(inner, "int2str"):
            found[column] = list(inner.names)
    return found


def name_labels(rows: list[dict[str, Any]], names: dict[str, list[str]], source: str) -> list[dict[str, Any]]:
    """Replace label ids by names; -1, the mark of an unlabelled row in `datasets`, becomes None.

    Raises:
        DataError: If an id has no name.
    """

    def name(value: Any, column: str, number: int) -> str | None:
        if value is None or value == -1:
            return None
        if not 0 <= value < len(names[column]):
            raise DataError(f"{source}: row {number}: {column}={value} is outside the {len(names[column])} names of its classes")
        return names[column][int(value)]

    for number, row in enumerate(rows, start=1):
        for column in names:
            value = row.get(column)
            if isinstance(value, list):
                row[column] = [name(item, column, number) for item in value]
            else:
                row[column] = name(value, column, number)
    return rows
