"""Plain readers of JSON lines, JSON, CSV, TSV and texts whose errors name the file and the line."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelzoo.errors import DataError, listing

__all__ = ["iterate_jsonl", "read_json", "read_jsonl", "read_lines", "read_table", "read_text"]

# A first line with a longer cell is a row, not a header.
_LONGEST_HEADER = 100
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LOOKED_AT = 20


def read_jsonl(path: Path, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; blank lines are skipped.

    Raises:
        DataError: If lines are no UTF-8, no JSON or no objects; it lists them.
    """
    rows: list[dict[str, Any]] = []
    problems: list[tuple[int, str]] = []
    for number, line in read_lines(path):
        if len(rows) == max_rows:
            break
        if line.strip():
            try:
                rows.append(_object(_parse(line, ""), ""))
            except DataError as error:
                problems.append((number, str(error).removeprefix(": ")))
    _refuse_lines(path, problems)
    return rows


def iterate_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as `read_jsonl` returns them, one after the other.

    Raises:
        DataError: If a line is no UTF-8, no JSON or no object, when its turn has come.
    """
    for number, line in read_lines(path):
        if line.strip():
            yield _object(_parse(line, f"{path}:{number}"), f"{path}:{number}")


def read_json(path: Path, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a JSON file: a list of objects, an object with them under "data", SQuAD's nested form, or JSON lines.

    Raises:
        DataError: If the file has none of these forms.
    """
    text = "".join(line for _, line in read_lines(path))
    if not text.strip():
        return []
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return read_jsonl(path, max_rows)
        raise _no_json(f"{path}:{error.lineno}", error, text.splitlines()[error.lineno - 1]) from error
    except RecursionError as error:
        raise DataError(f"{path}: expected rows, found JSON that is nested too deep") from error
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
        if value and isinstance(value[0], dict) and "paragraphs" in value[0]:
            value = list(_squad_rows(value, path))
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise DataError(f"{path}: expected a list of objects, found {type(value).__name__}")
    return [_object(row, f"{path}: row {number}") for number, row in enumerate(value[:max_rows], start=1)]


def read_text(path: Path) -> list[dict[str, Any]]:
    """Read a text file as one row, whose column is "text".

    Raises:
        DataError: If a line is no UTF-8, or there is nothing but white space.
    """
    text = "".join(line for _, line in read_lines(path))
    if not text.strip():
        raise DataError(f"{path}: expected a text, found {'white space' if text else 'an empty file'}")
    return [{"text": text}]


def read_table(path: Path, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a CSV file, or a TSV file (where quotes are ordinary characters, as in GLUE's files).

    The first line is the header. A file without one is known by a number or a long text in its first line; its columns, and those
    that a header leaves empty, are called column1, column2, ...

    Raises:
        DataError: If lines have another number of cells than the header, which it lists, if the header names a column twice, or
            if the cells are separated by something else.
    """
    is_tsv = path.suffix.lower() == ".tsv"
    lines = (line for _, line in read_lines(path))
    reader = csv.reader(
        lines,
        delimiter="\t" if is_tsv else ",",
        quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        strict=not is_tsv,
    )
    header: list[str] | None = None
    rows: list[dict[str, Any]] = []
    problems: list[tuple[int, str]] = []
    for number, cells in _cells(reader, path):
        if not cells:
            continue
        if header is None:
            header = _header(cells, path, number)
            if any(cell.strip() in header for cell in cells if cell.strip()):
                continue
        if max_rows is not None and len(rows) == max_rows:
            break
        if len(cells) == len(header):
            rows.append(dict(zip(header, cells, strict=True)))
            continue
        action = "remove tabs inside texts" if is_tsv else "put texts with commas in double quotes"
        problems.append((number, f"expected {len(header)} cells ({', '.join(header)}), found {len(cells)}; {action}"))
    _refuse_lines(path, problems)
    _refuse_other_separator(path, header or [], rows[:_LOOKED_AT])
    return rows


def _refuse_other_separator(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Raise where lines are one cell each that another separator would cut alike, as spreadsheets of many countries write them."""
    if len(header) != 1 or not rows:
        return
    lines = [header[0], *(row[header[0]] for row in rows)]
    for separator, name in _SEPARATORS.items():
        if header[0].count(separator) and len({line.count(separator) for line in lines}) == 1:
            form = "tab" if path.suffix.lower() == ".tsv" else "comma"
            advice = (
                "name the file .tsv" if separator == "\t" else "name the file .csv" if separator == "," else "save it with commas"
            )
            raise DataError(
                f"{path}:1: expected {form}-separated cells, found one cell, {header[0]!r}, which {name} would separate; {advice}"
            )


def _refuse_lines(path: Path, problems: Sequence[tuple[int, str]]) -> None:
    """Raise what is wrong with lines, all of them in one error."""
    if len(problems) == 1:
        raise DataError(f"{path}:{problems[0][0]}: {problems[0][1]}")
    if problems:
        lines = [f"line {number}: {problem}" for number, problem in problems]
        raise DataError(f"{path}: {len(lines):,} lines cannot be read; what the others hold is not known yet\n{listing(lines)}")


def _cells(reader: Any, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line with its number (the last line's, for a row of several)."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: expected comma- or tab-separated cells, found: {error}") from error
        yield reader.line_num, cells


def _header(cells: list[str], path: Path, number: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    numbered = [f"column{position}" for position in range(1, len(cells) + 1)]
    named = [name for name in names if name]
    is_counted = named == [str(count) for count in range(len(named))]  # pandas' header of a table without names
    if not named or (any(_is_value(name) for name in named) and not is_counted):
        return numbered
    double = sorted({name for name in named if names.count(name) > 1})
    if double:
        raise DataError(f"{path}:{number}: expected each column once in the header, found twice: {', '.join(double)}; rename one")
    return [name or default for name, default in zip(names, numbered, strict=True)]


def _is_value(cell: str) -> bool:
    """Tell whether a cell of the first line is a value rather than a column's name."""
    try:
        float(cell)
    except ValueError:
        return len(cell) > _LONGEST_HEADER
    return True


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line; lines end with a line feed only, as JSON strings may hold other breaks.

    Args:
        path: A text file.

    Raises:
        DataError: If it cannot be read or is no UTF-8; it names the line.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise DataError(f"{path}:1: expected UTF-8, found UTF-16; save the file as UTF-8")
                try:
                    yield number, raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    found = f"byte {raw[error.start]:#04x} at byte {error.start + 1} of the line"
                    raise DataError(f"{path}:{number}: expected UTF-8, found {found}; save the file as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror}") from error


def _parse(line: str, where: str) -> object:
    try:
        return json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise _no_json(where, error, line) from error
    except RecursionError as error:
        raise DataError(f"{where}: expected a row, found JSON that is nested too deep") from error


def _no_json(where: str, error: json.JSONDecodeError, line: str) -> DataError:
    shown = line.strip()
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return DataError(f"{where}: expected JSON, found: {error.msg} at column {error.colno}: {shown}")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f'{where}: expected an object like {{"text": ...}}, found {type(value).__name__}')
    return value


def _squad_rows(articles: list[Any], path: Path) -> Iterator[dict[str, Any]]:
    """Yield one row a question of SQuAD's nested form: data > paragraphs > qas."""
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {
                        "id": question.get("id"),
                        "question": question["question"],
                        "context": paragraph["context"],
                        "answers": question["answers"],
                    }
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: expected SQuAD's form (data, paragraphs, qas, question, answers), missing: {error}") from error
