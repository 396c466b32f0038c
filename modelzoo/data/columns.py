"""Which column of the rows plays which role: found by the names that people use, or told by `data.columns`."""

import dataclasses
import json
import math
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modelzoo.errors import DataError, closest

__all__ = ["TEXT_NAMES", "Asker", "Form", "check_told", "find_in_form", "no_form", "required_text", "show"]

TEXT_NAMES = ("text", "sentence", "content", "review", "document", "comment", "tweet", "question", "passage")
"""What people call a column of texts."""
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
_PREFIX = {"recipe": "data.columns.", "call": "columns."}
_NUMBERS = ("id", "idx", "guid")
_PAIR_ALIASES = {"text": "text_a", "pair": "text_b", "text_pair": "text_b"}

Asker = Literal["recipe", "call"]
"""Who names the columns: a recipe's `data.columns`, or the `columns` of eval, predict and their functions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One form that a task's rows may have: the roles of its columns, and what people call them."""

    task: str
    roles: Mapping[str, tuple[str, ...]]
    """Usual column names by role, the commonest first; a role without any is found in another way."""
    optional: frozenset[str] = frozenset()
    """Roles that rows may lack."""
    targets: frozenset[str] = frozenset()
    """Roles of what is learned, which rows to predict need not have."""
    filled: frozenset[str] = frozenset()
    """Roles whose text may be put together from columns, as "question: {question} context: {context}"."""
    is_pair: bool = False
    """Whether text_a and text_b are found together, by the names that pairs have."""


@dataclass(frozen=True, slots=True)
class _Search:
    """What an error about a missing column has to say."""

    form: Form
    columns: tuple[str, ...]
    row: Mapping[str, Any]
    source: str
    asker: Asker


def find_in_form(
    rows: Sequence[Mapping[str, Any]], form: Form, told: Mapping[str, str], *, source: str, labelled: bool, asker: Asker = "recipe"
) -> dict[str, str]:
    """Return the column of each role of a form.

    Args:
        rows: At least one row; the first one shows the columns.
        form: The form to find.
        told: Column by role, as `check_told` returns it; roles that it leaves out are looked for by their usual names.
        source: What the rows are called in errors.
        labelled: False leaves the targets' roles out (prediction).
        asker: Who is told how to name them.

    Raises:
        DataError: If no column fits a role; it shows the columns, the first row and the lines to add.
    """
    search = _Search(form, tuple(rows[0]), rows[0], source, asker)
    found = dict(told)
    if form.is_pair and not {"text_a", "text_b"} & set(told):
        found |= _text_columns(search, taken=set(told.values()))
    for role, names in form.roles.items():
        if role in found or (role in form.targets and not labelled):
            continue
        name = next((name for name in names if name in rows[0] and name not in found.values()), None)
        if name is not None:
            found[role] = name
        elif role not in form.optional:
            raise _missing(role, search, found)
    left_out = frozenset() if labelled else form.targets
    return {role: found[role] for role in form.roles if role in found and role not in left_out}


def required_text(row: Mapping[str, Any], column: str) -> str | None:
    """Return a row's text, or None when the cell is missing, null or NaN.

    Args:
        row: The row.
        column: Of the text; or a text with columns in braces, whose texts, numbers and truth values are filled in.

    Raises:
        TypeError: If the cell holds something else than a text.
    """
    if "{" in column and column not in row:
        return _filled_text(row, column)
    value = row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str):
        raise TypeError(f"expected a text in column {column!r}, found {show(value)} ({type(value).__name__})")
    return value


def _filled_text(row: Mapping[str, Any], pattern: str) -> str | None:
    parts: list[str] = []
    for text, column in _pattern_parts(pattern):
        parts.append(text)
        if column is None:
            continue
        value = row.get(column)
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int | float) and not math.isnan(value):
            value = str(value)
        found = required_text({column: value}, column)
        if found is None:
            return None
        parts.append(found)
    return "".join(parts)


def _pattern_parts(pattern: str) -> list[tuple[str, str | None]]:
    """Return texts, each with the column that follows it.

    Raises:
        ValueError: If braces do not pair, or hold more than a column.
    """
    parts = []
    for text, column, form, conversion in string.Formatter().parse(pattern):
        if column == "" or form or conversion:
            raise ValueError(f"expected a column's name alone in each pair of braces, found {pattern!r}")
        parts.append((text, column))
    return parts


def show(value: object, limit: int = 60) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def check_told(
    columns: Mapping[str, str], forms: Sequence[Form], row: Mapping[str, Any], source: str, asker: Asker = "recipe"
) -> dict[str, str]:
    """Return `data.columns` with the names that the forms' roles have.

    Args:
        columns: Column by role.
        forms: Of the task; a role may be of any of them.
        row: Shows the columns.
        source: What the rows are called in errors.
        asker: Who is told how to name them.

    Raises:
        DataError: If a role is of no form, or a column is not there.
    """
    search = _Search(forms[0], tuple(row), row, source, asker)
    roles = list(dict.fromkeys(role for form in forms for role in form.roles))
    told: dict[str, str] = {}
    for key, column in columns.items():
        role = _PAIR_ALIASES.get(key, key) if forms[0].is_pair else key
        if role not in roles:
            similar = closest(key, roles)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise DataError(f"data.columns: expected roles of {forms[0].task} ({', '.join(roles)}), found {key!r}{hint}")
        for name in _names_in(column, search, can_be_filled=any(role in form.filled for form in forms)):
            if name not in search.columns:
                similar = closest(name, search.columns)
                hint = f"; did you mean {similar[0]}?" if similar else ""
                raise DataError(
                    f"{source}: column {name!r} of {_PREFIX[asker]}{key} not found{hint}\n{_first_row(search)}\n"
                    f"{_again(search, forms, columns)}"
                )
        told[role] = column
    if "text_b" in told and "text_a" not in told:
        raise DataError(f"data.columns: expected text_a beside text_b={told['text_b']}, found it alone")
    return told


def _names_in(column: str, search: _Search, *, can_be_filled: bool) -> list[str]:
    """Return the columns that a mapping of `data.columns` names."""
    if column in search.columns or "{" not in column or not can_be_filled:
        return [column]
    try:
        names = [name for _, name in _pattern_parts(column) if name is not None]
    except ValueError as error:
        raise DataError(f"data.columns: {error}; double braces that are meant as such") from error
    return names or [column]


def _text_columns(search: _Search, taken: set[str]) -> dict[str, str]:
    """Find the one or two text columns of a classification."""
    for first, second in _PAIR_NAMES:
        if first in search.columns and second in search.columns and not {first, second} & taken:
            return {"text_a": first, "text_b": second}
    for name in ("text_a", *TEXT_NAMES):
        if name in search.columns and name not in taken:
            return {"text_a": name}
    raise _missing("text", search, {})


def _missing(role: str, search: _Search, found: Mapping[str, str]) -> DataError:
    """Return the error for a missing column, with the lines that would name it."""
    guess = _guess(search, dict(found))
    kind = "looks like" if all(column in search.columns for column in guess.values()) else "for example"
    advice = f"{kind} {search.form.task}.  {_advice(guess, search.asker)}"
    return DataError(f"{search.source}: column {role!r} not found\n{_first_row(search)}\n  {advice}")


def no_form(forms: Sequence[Form], row: Mapping[str, Any], source: str, asker: Asker) -> DataError:
    """Return the error for rows that have none of a task's forms, with the lines for the form that they could have.

    Args:
        forms: Of the task, at least two.
        row: Shows the columns.
        source: What the rows are called.
        asker: Who is told how to name them.
    """
    search = _Search(_nearest(forms, row), tuple(row), row, source, asker)
    known = "; or ".join(", ".join(role for role in form.roles if role not in form.optional) for form in forms)
    guess = _guess(search, {})
    return DataError(
        f"{source}: its columns are none that {forms[0].task} knows\n{_first_row(search)}\n"
        f"  expected        {known}\n  {_advice(guess, asker)}"
    )


def _nearest(forms: Sequence[Form], row: Mapping[str, Any]) -> Form:
    """Return the form that most columns could fill; of two such the later one, which is the more general."""
    texts = [column for column, value in row.items() if isinstance(value, str) and column not in _NUMBERS]
    lists = [column for column, value in row.items() if isinstance(value, list)]

    def filled(form: Form) -> tuple[bool, int]:
        needed = [role for role in form.roles if role not in form.optional]
        takes_lists = bool({"choices", "messages"} & set(needed))
        return takes_lists == bool(lists) and len(needed) <= len(texts) + len(lists), min(len(needed), len(texts) + len(lists))

    return max(reversed(forms), key=filled)


def _again(search: _Search, forms: Sequence[Form], columns: Mapping[str, str]) -> str:
    """Return the lines that name the columns of rows for which a recipe's own names do not fit."""
    form = next((form for form in forms if set(columns) <= set(form.roles)), forms[0])
    told = dataclasses.replace(search, form=dataclasses.replace(form, roles=dict.fromkeys(columns, ()), is_pair=False))
    guess = _guess(told, {role: column for role, column in columns.items() if column in search.columns})
    return f"  name the columns of your file.  {_advice(guess, search.asker)}"


def _advice(guess: Mapping[str, str], asker: Asker) -> str:
    """Return how columns are named: in a recipe and beside `modelzoo train`, or beside eval and predict and in Python."""
    words = " ".join(shlex.quote(f"{_PREFIX[asker]}{role}={column}") for role, column in guess.items())
    wanted = ", ".join(f"{role}: {column}" for role, column in guess.items())
    if asker == "call":
        return f"add to the command:\n      {words}\n  or in Python: columns={dict(guess)}"
    return f"add to your recipe:\n      data:\n        columns: {{{wanted}}}\n  or to the command: {words}"


def _first_row(search: _Search) -> str:
    shown = show(dict(search.row), 160)
    return f"  columns found   {', '.join(map(str, search.columns))}\n  row 1           {shown}"


def _guess(search: _Search, guess: dict[str, str]) -> dict[str, str]:
    """Guess the roles from the first row's values: texts by length, labels by being short."""
    rest = [column for column in search.columns if column not in guess.values() and column not in _NUMBERS]
    if search.form.is_pair:
        texts = [column for column in rest if isinstance(search.row[column], str) and len(search.row[column]) > 20]
        for role, column in zip(("text_a", "text_b"), texts, strict=False):
            guess.setdefault(role, column)
        rest = [column for column in rest if column not in guess.values() and not isinstance(search.row[column], list | dict)]
        wanted: Iterable[str] = ("text_a", "label")
    else:
        wanted = search.form.roles
    for role in wanted:
        if role not in guess:
            guess[role] = rest.pop(0) if rest else "COLUMN"
    return {role: guess[role] for role in search.form.roles if role in guess}
