"""Pieces of the page: everything that comes from a file is escaped here."""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from modelzoo.quantities import readable_size, time_text

__all__ = ["facts", "number", "preformatted", "seconds_text", "size", "table", "tile"]

_NUMBER = re.compile(r"([-+]?[0-9][0-9,.:]*(e[-+]?[0-9]+)?)?( ?%| m?s| B| [KMG]iB)?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, best: int | None = None) -> str:
    """Return a table; cells that are numbers stand right.

    Args:
        header: Names of the columns.
        rows: Cells, one for each column.
        best: Index of the row that is marked.
    """
    if not rows:
        return '<p class="none">nothing was recorded</p>'
    is_number = [all(_is_number(row[index]) for row in rows) for index in range(len(header))]
    kinds = [' class="n"' if number else "" for number in is_number]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(header, kinds, strict=True))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
        kind = ' class="best"' if index == best else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def facts(values: Mapping[str, Any]) -> str:
    """Return a table of names and values without a header; values that are None are left out."""
    rows = [
        f"<tr><th>{escape(str(name))}</th><td>{escape(_fact(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    ]
    return f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'


def tile(value: str, name: str) -> str:
    """Return a figure and, smaller, what it is."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'


def preformatted(text: str) -> str:
    """Return a text as it stands."""
    return f"<pre>{escape(text.rstrip())}</pre>"


def number(value: Any, digits: int = 4) -> str:
    """Return a number with so many digits after the point, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}f}" if abs(value) >= 10.0**-digits or value == 0 else f"{value:.2e}"


def size(value: Any) -> str:
    """Return bytes in a unit that fits, and nothing for what is no number."""
    return readable_size(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def seconds_text(value: Any) -> str:
    """Return a short time in ms or s, a long one as minutes."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if value >= 60:
        return time_text(value)
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _fact(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(str(cell)) is not None
