"""How the command speaks: text on stdout from one process, errors on stderr as one block, JSON where a program reads."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import typer

from modelzoo.errors import ConfigError
from modelzoo.launch import board_of, place_of

__all__ = ["Ended", "columns", "is_first_process", "say", "say_error", "say_json", "terminal_width"]

_LEAST_FOLD = 20
"""Characters of a column below which folding makes it harder to read, not easier."""


class Ended(Exception):  # it is no error: the command said what there is to say
    """Ends the command with an exit code and no further word.

    Args:
        exit_code: Of the process.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def is_first_process() -> bool:
    """Return whether this process is the one that prints: the only one, or rank 0."""
    return _rank() == 0


def say(text: str = "", *, on_stderr: bool = False) -> None:
    """Write a line (or several), on the first process alone.

    Args:
        text: Without the end of its last line.
        on_stderr: Whether to stderr, because stdout is for a program.
    """
    if is_first_process():
        typer.echo(text, err=on_stderr)


def say_json(value: Any) -> None:
    """Write a value as indented JSON to stdout, on the first process alone."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def say_error(text: str, *, everywhere: bool = False) -> None:
    """Write an error as one block to stderr; a rank that `modelzoo` started leaves it to that process, which puts the cause first.

    Args:
        text: What was expected, what came and what to do; later lines are details.
        everywhere: Whether a process other than the first writes too, with its rank in front.
    """
    if (board := board_of(os.environ)) is not None:
        board.set(f"error/{_rank()}", text)
    elif is_first_process():
        typer.echo(f"error: {text}", err=True)
    elif everywhere:
        typer.echo(f"error on rank {_rank()}: {text}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()


def _rank() -> int:
    try:
        return place_of(os.environ).rank
    except ConfigError:  # said by what needs the place; until then there is one process
        return 0


def terminal_width() -> int | None:
    """Return the characters of a line of the terminal that stdout is, or None where it is none and lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def columns(rows: Sequence[Sequence[str]], *, indent: int = 1, gap: int = 2, width: int | None = None) -> str:
    """Return rows as lines whose cells stand under each other; the last cell of a row is not padded.

    Args:
        rows: Cells of each row; all rows are equally long.
        indent: Spaces before each line.
        gap: Spaces between two columns.
        width: Of a line, in characters, into which the last column is folded where that leaves it room to be read.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    before = indent + sum(widths[:-1]) + gap * (len(widths) - 1)
    room = width - before if width is not None and width - before >= _LEAST_FOLD else None
    lines = []
    for row in rows:
        first, *more = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""] if room else [row[-1]]
        cells = [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), first]
        lines.append(" " * indent + (" " * gap).join(cells).rstrip())
        lines += [" " * before + line for line in more]
    return "\n".join(lines)
