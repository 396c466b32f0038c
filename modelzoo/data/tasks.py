"""From rows to token ids and targets, one function per task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelzoo.data.columns import find_columns, problem_rows, required_text, show
from modelzoo.data.encoding import Encoding, Truncation
from modelzoo.data.labels import LabelTable, collect_names, label_name
from modelzoo.data.masking import IGNORED
from modelzoo.data.question_answering import encode_questions
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["EncodedRows", "Recipe", "encode_rows"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How rows are encoded."""

    task: str
    """classification, token_classification, question_answering or masked_lm."""
    tokenizer: Tokenizer
    """The tokenizer of the model."""
    max_length: int
    """Tokens of the longest item, special tokens included."""
    columns: Mapping[str, str] | None = None
    """Column by role; what it leaves out is looked for."""
    label_names: Sequence[str] | None = None
    """Names of the labels by id; None takes them from the rows."""
    truncation: Truncation = "longest_first"
    """Which text loses tokens."""
    window_stride: int | None = None
    """Tokens that neighbouring windows share; None: 128, and at most a quarter of max_length."""
    source: str = "data"
    """What the rows are called in errors."""
    labelled: bool = True
    """False: there are no labels (prediction)."""


@dataclass(kw_only=True, slots=True)
class EncodedRows:
    """Items: one a row, or one a window of a row."""

    encodings: list[Encoding]
    """Ids of each item; `row` tells its row, counted from 0."""
    labels: list[int] | list[list[int]] | None = None
    """One label an item, or one a token; None where there are none."""
    spans: list[tuple[int, int]] | None = None
    """First and last token of the answer, for question answering."""
    label_names: tuple[str, ...] = ()
    """Names of the labels by id."""
    lost_targets: int = 0
    """Targets that truncation or the tokenizer removed."""
    empty_rows: list[int] = field(default_factory=list)
    """Rows without any text, counted from 0."""


def encode_rows(rows: Rows, recipe: Recipe) -> EncodedRows:
    """Encode all rows of a data set.

    Raises:
        DataError: If a column, text or label is missing or wrong, naming the row (counted from 1) and its value.
    """
    if not rows:
        raise DataError(f"{recipe.source}: expected at least one row, found none")
    columns = find_columns(rows, recipe.task, recipe.columns, source=recipe.source, labelled=recipe.labelled)
    encode = {
        "classification": _classification,
        "token_classification": _token_classification,
        "question_answering": _question_answering,
        "masked_lm": _masked_lm,
    }[recipe.task]
    try:
        return encode(rows, columns, recipe)
    except DataError as error:
        if str(error).startswith(f"{recipe.source}:"):
            raise
        raise DataError(f"{recipe.source}: {error}") from error


def _classification(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    first = _texts(rows, columns["text_a"], recipe.source)
    second = _texts(rows, columns["text_b"], recipe.source) if "text_b" in columns else None
    empty = [row for row, text in enumerate(first) if not text.strip() and (second is None or not second[row].strip())]
    if empty:
        raise problem_rows(recipe.source, [f"row {row + 1}: the text is empty" for row in empty], "fill or remove it")
    result = EncodedRows(encodings=recipe.tokenizer.encode(first, second, recipe.max_length, recipe.truncation))
    if "label" in columns:
        values = [row.get(columns["label"]) for row in rows]
        table = _label_table([[value] for value in values], recipe)
        result.labels = [ids[0] for ids in _label_ids([[value] for value in values], table, recipe)]
        result.label_names = table.names
    elif recipe.label_names:
        result.label_names = tuple(recipe.label_names)
    return result


def _token_classification(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    words = _word_lists(rows, columns["tokens"], recipe.source)
    encodings = recipe.tokenizer.encode_words(words, recipe.max_length, recipe.truncation)
    result = EncodedRows(encodings=encodings, label_names=tuple(recipe.label_names or ()))
    if "tags" not in columns:
        return result
    tags = [row.get(columns["tags"]) for row in rows]
    problems = [
        f"row {number}: {len(row_words)} words in {columns['tokens']!r}, but {columns['tags']!r} has {_size(row_tags)}"
        for number, (row_words, row_tags) in enumerate(zip(words, tags, strict=True), start=1)
        if not isinstance(row_tags, list | tuple) or len(row_tags) != len(row_words)
    ]
    if problems:
        raise problem_rows(recipe.source, problems, "give one tag a word")
    values: list[list[Any]] = [list(row_tags or ()) for row_tags in tags]
    table = _label_table(values, recipe)
    ids = _label_ids(values, table, recipe)
    result.labels = [_align(encoding, row_ids) for encoding, row_ids in zip(encodings, ids, strict=True)]
    kept = sum(label != IGNORED for labels in result.labels for label in labels)
    result.lost_targets = sum(map(len, ids)) - kept
    result.label_names = table.names
    return result


def _question_answering(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    questions = _texts(rows, columns["question"], recipe.source)
    contexts = _texts(rows, columns["context"], recipe.source)
    answers = [row.get(columns["answers"]) for row in rows] if "answers" in columns else None
    stride = min(128, recipe.max_length // 4) if recipe.window_stride is None else recipe.window_stride
    encodings, spans = encode_questions(
        recipe.tokenizer, questions, contexts, answers, max_length=recipe.max_length, stride=stride, source=recipe.source
    )
    return EncodedRows(encodings=encodings, spans=spans)


def _masked_lm(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    texts = _texts(rows, columns["text"], recipe.source)
    encodings = recipe.tokenizer.encode(texts, None, recipe.max_length, recipe.truncation)
    special = recipe.tokenizer.special_ids
    empty = [row for row, encoding in enumerate(encodings) if special.issuperset(encoding.input_ids)]
    return EncodedRows(encodings=encodings, empty_rows=empty)


def _texts(rows: Rows, column: str, source: str) -> list[str]:
    """Return the texts of a column, all problems reported at once."""
    texts: list[str] = []
    problems: list[str] = []
    for number, row in enumerate(rows, start=1):
        try:
            text = required_text(row, column)
        except TypeError as error:
            problems.append(f"row {number}: {error}")
            continue
        if text is None:
            problems.append(f"row {number}: the text in column {column!r} is missing")
        else:
            texts.append(text)
    if problems:
        raise problem_rows(source, problems, "fill or remove the row")
    return texts


def _word_lists(rows: Rows, column: str, source: str) -> list[list[str]]:
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


def _label_table(values: Sequence[Sequence[Any]], recipe: Recipe) -> LabelTable:
    """Return the given label names, or those that the rows have."""
    if recipe.label_names is not None:
        return LabelTable(recipe.label_names)
    problems: list[str] = []
    for number, row in enumerate(values, start=1):
        for value in row:
            try:
                label_name(value)
            except ValueError as error:
                problems.append(f"row {number}: {error}")
                break
    if problems:
        raise problem_rows(recipe.source, problems, "give each row a label")
    return LabelTable(collect_names((value for row in values for value in row), len(values)))


def _label_ids(values: Sequence[Sequence[Any]], table: LabelTable, recipe: Recipe) -> list[list[int]]:
    ids: list[list[int]] = []
    problems: list[str] = []
    for number, row in enumerate(values, start=1):
        try:
            ids.append([table.id(value) for value in row])
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        raise problem_rows(recipe.source, problems, "correct the label, or set data.label_names to all labels")
    return ids


def _align(encoding: Encoding, word_labels: Sequence[int]) -> list[int]:
    """Put each word's label on its first token and IGNORED on all others."""
    labels: list[int] = []
    previous: int | None = None
    for word in encoding.word_ids or ():
        labels.append(IGNORED if word is None or word == previous else word_labels[word])
        previous = word
    return labels


def _size(value: object) -> str:
    return f"{len(value)} tags" if isinstance(value, list | tuple) else show(value)
