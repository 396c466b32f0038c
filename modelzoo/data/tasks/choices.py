"""Rows with choices: a text, what may answer it, and which one is right.

An encoder reads the text with each choice and scores it (`MULTIPLE_CHOICE`). A language model learns to write the right choice
after the text, and is judged by which of them it finds likeliest (`with_choices`).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.data.columns import Form, show
from modelzoo.data.encoding import Encoding
from modelzoo.data.masking import IGNORED
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.tasks.spec import EncodedRows, PromptRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts
from modelzoo.errors import DataError

__all__ = ["MULTIPLE_CHOICE", "ChoiceRow", "read_choices", "read_groups", "with_choices"]

_UNLIMITED = 2**20  # tokens; the prompt is cut here, where the choices of a row are known together
_Encode = Callable[[Rows, Mapping[str, str], Recipe], EncodedRows]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceRow:
    """One row."""

    prompt: str
    choices: tuple[str, ...]
    label: int | None
    """Number of the choice that is learned, from 0; None where nobody knows it."""
    names: tuple[str, ...]
    """What each choice stands for, where answers are compared; the choices themselves where rows do not say."""
    answers: tuple[str, ...]
    """All right names; empty where the label alone is right."""
    group: str | None
    """What rows that are judged together share."""


def _form(task: str, prompt: str, names: tuple[str, ...]) -> Form:
    return Form(
        task=task,
        roles={
            prompt: names,
            "choices": ("choices", "candidates", "options"),
            "label": ("label", "answer"),
            "names": ("names",),
            "answers": ("answers",),
            "group": ("question_group",),
        },
        optional=frozenset({"names", "answers", "group"}),
        targets=frozenset({"label", "answers"}),
        filled=frozenset({prompt}),
    )


def read_choices(rows: Rows, columns: Mapping[str, str], *, source: str, labelled: bool = True) -> list[ChoiceRow]:
    """Read rows with choices.

    Args:
        rows: All rows.
        columns: Column of each role; the text's is prompt or source.
        source: What the rows are called in errors.
        labelled: Whether each row has to have a label.

    Raises:
        DataError: If a row lacks something or the label is no choice; it lists the rows, counted from 1.
    """
    checks = RowChecks(source)
    prompts = ["unread"] * len(rows)  # where the texts are wrong, the choices are looked at all the same
    with checks:
        prompts = read_texts(rows, columns.get("prompt") or columns["source"], source)
    found: list[ChoiceRow] = []
    problems: list[str] = []
    for number, (row, prompt) in enumerate(zip(rows, prompts, strict=True), start=1):
        try:
            found.append(_read(row, prompt, columns, labelled=labelled))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    with checks:
        if problems:
            raise problem_rows(source, problems, "repair or remove the row")
    checks.finish()
    return found


def _read(row: Mapping[str, Any], prompt: str, columns: Mapping[str, str], *, labelled: bool) -> ChoiceRow:
    if not prompt.strip():
        raise ValueError("the text before the choices is empty")
    choices = _texts(row, columns["choices"])
    names = _texts(row, columns["names"]) if "names" in columns else choices
    if len(names) != len(choices):
        raise ValueError(f"expected a name in {columns['names']!r} for each of {len(choices)} choices, found {len(names)}")
    answers = _texts(row, columns["answers"], least=0) if "answers" in columns else ()
    label = _label(row.get(columns["label"]), columns["label"], choices) if labelled else None
    group = row.get(columns["group"]) if "group" in columns else None
    return ChoiceRow(
        prompt=prompt, choices=choices, label=label, names=names, answers=answers, group=None if group is None else str(group)
    )


def _texts(row: Mapping[str, Any], column: str, *, least: int = 1) -> tuple[str, ...]:
    value = row.get(column)
    if not isinstance(value, list | tuple) or len(value) < least or not all(isinstance(one, str) and one.strip() for one in value):
        raise ValueError(f"expected a list of texts in column {column!r}, found {show(value)}")
    if len(set(value)) < len(value):
        raise ValueError(f"expected each text of column {column!r} once, found {show(value)}")
    return tuple(value)


def _label(value: Any, column: str, choices: Sequence[str]) -> int:
    """Return the number of the right choice, given as its number from 0 or as its text."""
    if isinstance(value, str) and value in choices:
        return choices.index(value)
    if isinstance(value, int | float) and value in range(len(choices)):
        return int(value)
    if value is None or value == -1:
        raise ValueError(f"the label in column {column!r} is missing")
    raise ValueError(f"expected the number (0 to {len(choices) - 1}) or text of a choice in column {column!r}, found {show(value)}")


def _counts(rows: Sequence[ChoiceRow]) -> dict[str, int]:
    """Return how often each choice is right, by its name; nothing where rows have choices of their own, or no labels."""
    names = rows[0].names
    if any(row.names != names or row.label is None for row in rows):
        return {}
    found = [0] * len(names)
    for row in rows:
        found[row.label or 0] += 1
    return {name.strip(): count for name, count in zip(names, found, strict=True)}


def read_groups(rows: Rows, columns: Mapping[str, str]) -> list[str] | None:
    """Return what rows that are judged together share, or None where rows are judged one by one.

    Args:
        rows: All rows.
        columns: Column of each role.
    """
    return [str(row.get(columns["group"])) for row in rows] if "group" in columns else None


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    """Encode each row's choices beside its text, one after another."""
    some = read_choices(rows, columns, source=recipe.source, labelled=recipe.labelled)
    texts = [row.prompt for row in some for _ in row.choices]
    pairs = recipe.tokenizer.encode(texts, [choice for row in some for choice in row.choices], recipe.max_length, recipe.truncation)
    result = EncodedRows(encodings=[], parts=[], choice_counts=_counts(some))
    start = 0
    for number, row in enumerate(some):
        own = pairs[start : start + len(row.choices)]
        start += len(own)
        types = [pair.token_type_ids for pair in own if pair.token_type_ids is not None]
        result.encodings.append(
            Encoding(
                input_ids=[token_id for pair in own for token_id in pair.input_ids],
                token_type_ids=[kind for some_types in types for kind in some_types] if types else None,
                row=number,
                truncated=sum(pair.truncated for pair in own),
            )
        )
        assert result.parts is not None
        result.parts.append([len(pair.input_ids) for pair in own])
    if recipe.labelled:
        result.labels = [row.label for row in some if row.label is not None]
    return result


MULTIPLE_CHOICE = TaskSpec(
    forms=(_form("multiple_choice", "prompt", ("prompt", "question", "query", "context", "sentence", "premise")),),
    encode=_encode,
    targets="item",
)


def with_choices(spec: TaskSpec, prompt: str, completion: str) -> TaskSpec:
    """Return a language model's task with one form more: a prompt, choices, and which of them is to be written.

    Args:
        spec: Of the task.
        prompt: Its role of what is read.
        completion: Its role of what is written.
    """
    task = spec.forms[0].task
    roles = {prompt: prompt, completion: completion}

    def written(texts: Sequence[tuple[int, str, str]], recipe: Recipe) -> EncodedRows:
        """Encode (row, prompt, completion)s."""
        pairs = [{prompt: read, completion: wanted} for _, read, wanted in texts]
        # a causal model's prompt loses tokens at its beginning, the same for all choices of a row
        wide = dataclasses.replace(recipe, max_length=_UNLIMITED) if spec.predicts_next else recipe
        encoded = spec.encode(pairs, roles, wide)
        encoded.encodings = [
            dataclasses.replace(encoding, row=row) for encoding, (row, _, _) in zip(encoded.encodings, texts, strict=True)
        ]
        encoded.form = "choice"
        return _cut(encoded, recipe) if spec.predicts_next else encoded

    def encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
        if "choices" not in columns:
            return spec.encode(rows, columns, recipe)
        some = read_choices(rows, columns, source=recipe.source)
        encoded = written([(row, one.prompt, one.choices[one.label or 0]) for row, one in enumerate(some)], recipe)
        encoded.choice_counts = _counts(some)
        return encoded

    def candidates(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
        some = read_choices(rows, columns, source=recipe.source, labelled=recipe.labelled)
        return written([(row, one.prompt, choice) for row, one in enumerate(some) for choice in one.choices], recipe)

    def prompts(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> PromptRows:
        assert spec.prompts is not None
        if "choices" not in columns:
            return spec.prompts(rows, columns, recipe)
        some = read_choices(rows, columns, source=recipe.source, labelled=recipe.labelled)
        asked = spec.prompts([{prompt: row.prompt} for row in some], {prompt: prompt}, dataclasses.replace(recipe, labelled=False))
        right = [row.answers or (row.choices[row.label],) for row in some if row.label is not None]
        return dataclasses.replace(asked, answers=right)

    names = ("prompt", "question", "query", "context") if prompt == "prompt" else ("source", "prompt", "question", "query")
    form = _form(task, prompt, names)
    return dataclasses.replace(spec, forms=(form, *spec.forms), encode=encode, prompts=prompts, candidates=candidates)


def _cut(encoded: EncodedRows, recipe: Recipe) -> EncodedRows:
    """Shorten prompts at their beginnings, special tokens there kept, so that a row's longest choice fits whole."""
    special = recipe.tokenizer.special_ids
    excess: dict[int, int] = {}
    for encoding in encoded.encodings:
        excess[encoding.row] = max(excess.get(encoding.row, 0), len(encoding.input_ids) - recipe.max_length)
    labels: list[list[int]] = []
    for place, encoding in enumerate(encoded.encodings):
        ids, wanted, cut = encoding.input_ids, encoded.labels[place], excess[encoding.row]  # type: ignore[index]  # of a language model
        assert isinstance(wanted, list)
        if cut:
            first = int(ids[0] in special)
            asked = next(number for number, label in enumerate(wanted) if label != IGNORED)
            if recipe.truncation == "error" or first + cut >= asked:
                found = f"row {encoding.row + 1} has {cut} tokens more than {recipe.max_length} with its longest choice"
                raise DataError(f"{recipe.source}: {found}; shorten it, raise max_length, or set truncation=longest_first")
            ids, wanted = [*ids[:first], *ids[first + cut :]], [*wanted[:first], *wanted[first + cut :]]
            encoded.encodings[place] = dataclasses.replace(encoding, input_ids=ids, truncated=cut)
        labels.append(wanted)
    encoded.labels = labels
    return encoded
