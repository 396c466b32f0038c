"""Texts and lists of words from the columns of rows, all problems reported at once."""

from modelzoo.data.columns import required_text, show
from modelzoo.data.row_problems import problem_rows
from modelzoo.data.tasks.spec import Rows

__all__ = ["read_texts", "read_words"]


def read_texts(rows: Rows, column: str, source: str, *, may_be_missing: bool = False, never_empty: str | None = None) -> list[str]:
    """Return the texts of a column.

    Args:
        rows: All rows.
        column: Which; or a text with columns in braces, which are filled in ("question: {question}").
        source: What the rows are called in errors.
        may_be_missing: Whether a missing text is an empty one.
        never_empty: What the text is called where none may be empty; None where some may.

    Raises:
        DataError: If a text is missing, no text, or empty and must not be; it lists the rows, counted from 1.
    """
    texts: list[str] = []
    problems: list[str] = []
    for number, row in enumerate(rows, start=1):
        try:
            text = required_text(row, column)
        except TypeError as error:
            problems.append(f"row {number}: {error}")
            continue
        if text is None and not may_be_missing:
            problems.append(f"row {number}: the text in column {column!r} is missing")
        elif never_empty is not None and not (text or "").strip():
            problems.append(f"row {number}: {never_empty} is empty")
        else:
            texts.append(text or "")
    if problems:
        raise problem_rows(source, problems, "fill or remove the row")
    return texts


def read_words(rows: Rows, column: str, source: str) -> list[list[str]]:
    """Return the lists of words of a column.

    Args:
        rows: All rows.
        column: Which.
        source: What the rows are called in errors.

    Raises:
        DataError: If a cell is no list of words, or an empty one; it lists the rows, counted from 1.
    """
    words: list[list[str]] = []
    problems: list[str] = []
    for number, row in enumerate(rows, start=1):
        value = row.get(column)
        if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
            words.append(list(value))
        else:
            problems.append(f"row {number}: expected a list of words in column {column!r}, found {show(value)}")
    if problems:
        raise problem_rows(source, problems, "give a list with at least one word")
    return words
