"""CoNLL's form of labelled words: one word a line with its columns, an empty line after each sentence."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from modelzoo.data.text_files import read_lines
from modelzoo.errors import DataError

__all__ = ["read_conll"]

_NEW_DOCUMENT = "-DOCSTART-"


def read_conll(path: Path, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a file in CoNLL's form: the first column holds the word, the last one its tag (CoNLL 2003, WNUT).

    Columns are apart by tabs, where the file has any, or by spaces. Lines that begin with -DOCSTART- are left out.

    Args:
        path: The file.
        max_rows: Only the first sentences; None for all.

    Returns:
        One row a sentence, with `tokens` and `tags`.

    Raises:
        DataError: If a line has another number of columns than the first one, or fewer than two.
    """
    return list(islice(_sentences(path), max_rows))


def _sentences(path: Path) -> Iterator[dict[str, Any]]:
    tokens: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in read_lines(path):
        cells = (line.rstrip("\r\n").split("\t") if "\t" in line else line.split()) if line.strip() else []
        if not cells or cells[0] == _NEW_DOCUMENT:
            if tokens:
                yield {"tokens": tokens, "tags": tags}
                tokens, tags = [], []
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2 or not cells[0].strip() or not cells[-1].strip():
            expected = f"{width} columns" if width > 1 else "a word and its tag"
            raise DataError(f"{path}:{number}: expected {expected}, found {line.rstrip()!r:.80}; separate them by a tab or a space")
        tokens.append(cells[0])
        tags.append(cells[-1])
    if tokens:
        yield {"tokens": tokens, "tags": tags}
