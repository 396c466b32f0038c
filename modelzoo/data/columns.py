"""Which column of the rows plays which role: found by the names that people use, or told by `data.columns`."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.errors import DataError, closest, listing

__all__ = ["TASK_ROLES", "find_columns", "problem_rows", "required_text"]

_TEXT_NAMES = ("text", "sentence", "content", "review", "document", "comment", "tweet", "question", "passage")
_PAIR_NAMES = (
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "sentence"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "text"),
    ("query", "title"),
)
_LABEL_NAMES = ("label", "labels", "answer", "target", "class", "category", "gold_label", "coarse_label")

TASK_ROLES: dict[str, tuple[str, ...]] = {
    "classification": ("text_a", "text_b", "label"),
    "token_classification": ("tokens", "tags"),
    "question_answering": ("question", "context", "answers"),
    "masked_lm": ("text",),
}
"""The roles that columns play, by task; text_b is optional."""

_ROLE_ALIASES = {"text": "text_a", "pair": "text_b", "text_pair": "text_b"}

_LABEL_ROLES = {"classification": "label", "token_classification": "tags", "question_answering": "answers"}
_KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "text": _TEXT_NAMES,
    "tokens": ("tokens", "words"),
    "tags": ("ner_tags", "tags", "pos_tags", "chunk_tags", "labels", "ner", "label"),
    "question": ("question", "query"),
    "context": ("context", "passage", "paragraph", "document"),
    "answers": ("answers", "answer"),
    "label": _LABEL_NAMES,
}


@dataclass(frozen=True, slots=True)
class _Search:
    """What an error about a missing column has to say."""

    task: str
    columns: tuple[str, ...]
    row: Mapping[str, Any]
    source: str


def find_columns(
    rows: Sequence[Mapping[str, Any]],
    task: str,
    columns: Mapping[str, str] | None = None,
    *,
    source: str = "data",
    labelled: bool = True,
) -> dict[str, str]:
    """Return the column of each role of the task.

    Args:
        rows: At least one row; the first one shows the columns.
        task: One of TASK_ROLES.
        columns: Column by role, as in `data.columns`; roles that it leaves out are looked for by their usual names.
        source: What the rows are called in errors.
        labelled: False leaves the label's role out (prediction).

    Raises:
        DataError: If a role or column is not known or no column fits; it shows the columns, the first row and the lines to add.
    """
    if task not in TASK_ROLES:
        raise DataError(f"{source}: expected a task with a data form ({', '.join(TASK_ROLES)}), found {task!r}")
    search = _Search(task, tuple(rows[0]), rows[0], source)
    told = _told_columns(columns or {}, search)
    label = _LABEL_ROLES.get(task)
    found = dict(told)
    if task == "classification" and not {"text_a", "text_b"} & set(told):
        found |= _text_columns(search, taken=set(told.values()))
    for role in TASK_ROLES[task]:
        if role in found or role == "text_b" or (role == label and not labelled):
            continue
        name = next((name for name in _KNOWN_NAMES.get(role, ()) if name in rows[0] and name not in found.values()), None)
        if name is None:
            raise _missing(role, search, found)
        found[role] = name
    if label is not None and not labelled:
        found.pop(label, None)
    return {role: found[role] for role in TASK_ROLES[task] if role in found}


def required_text(row: Mapping[str, Any], column: str) -> str | None:
    """Return a row's text, or None when the cell is missing, null or NaN.

    Raises:
        TypeError: If the cell holds something else than a text.
    """
    value = row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str):
        raise TypeError(f"expected a text in column {column!r}, found {show(value)} ({type(value).__name__})")
    return value


def problem_rows(source: str, problems: Sequence[str], action: str) -> DataError:
    """Return one error that lists the rows with a problem, 20 at most."""
    if len(problems) == 1:
        return DataError(f"{source}: {problems[0]}; {action}")
    return DataError(f"{source}: {len(problems)} rows have a problem; {action}\n{listing(problems)}")


def show(value: object, limit: int = 60) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _told_columns(columns: Mapping[str, str], search: _Search) -> dict[str, str]:
    """Check the mapping of `data.columns`."""
    roles = TASK_ROLES[search.task]
    told: dict[str, str] = {}
    for key, column in columns.items():
        role = _ROLE_ALIASES.get(key, key) if search.task == "classification" else key
        if role not in roles:
            similar = closest(key, roles)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise DataError(f"data.columns: expected roles of {search.task} ({', '.join(roles)}), found {key!r}{hint}")
        if column not in search.columns:
            similar = closest(column, search.columns)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise DataError(f"{search.source}: column {column!r} of data.columns.{key} not found{hint}\n{_first_row(search)}")
        told[role] = column
    if "text_b" in told and "text_a" not in told:
        raise DataError(f"data.columns: expected text_a beside text_b={told['text_b']}, found it alone")
    return told


def _text_columns(search: _Search, taken: set[str]) -> dict[str, str]:
    """Find the one or two text columns of a classification."""
    for first, second in _PAIR_NAMES:
        if first in search.columns and second in search.columns and not {first, second} & taken:
            return {"text_a": first, "text_b": second}
    for name in ("text_a", *_TEXT_NAMES):
        if name in search.columns and name not in taken:
            return {"text_a": name}
    raise _missing("text", search, {})


def _missing(role: str, search: _Search, found: Mapping[str, str]) -> DataError:
    """Return the error for a missing column, with the lines that would name it."""
    guess = _guess(search, dict(found))
    wanted = ", ".join(f"{key}: {column}" for key, column in guess.items())
    kind = "looks like" if all(column in search.columns for column in guess.values()) else "for example"
    return DataError(
        f"{search.source}: column {role!r} not found\n{_first_row(search)}\n  {kind} {search.task}.  add to your recipe:\n"
        f"      data:\n        columns: {{{wanted}}}"
    )


def _first_row(search: _Search) -> str:
    shown = show(dict(search.row), 160)
    return f"  columns found   {', '.join(map(str, search.columns))}\n  row 1           {shown}"


def _guess(search: _Search, guess: dict[str, str]) -> dict[str, str]:
    """Guess the roles from the first row's values: texts by length, labels by being short."""
    rest = [column for column in search.columns if column not in guess.values() and column not in ("id", "idx", "guid")]
    if search.task == "classification":
        texts = [column for column in rest if isinstance(search.row[column], str) and len(search.row[column]) > 20]
        for role, column in zip(("text_a", "text_b"), texts, strict=False):
            guess.setdefault(role, column)
        rest = [column for column in rest if column not in guess.values() and not isinstance(search.row[column], list | dict)]
        wanted: Iterable[str] = ("text_a", "label")
    else:
        wanted = TASK_ROLES[search.task]
    for role in wanted:
        if role not in guess:
            guess[role] = rest.pop(0) if rest else "COLUMN"
    return {role: guess[role] for role in TASK_ROLES[search.task] if role in guess}
