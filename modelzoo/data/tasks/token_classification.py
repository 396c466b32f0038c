"""Token classification: a list of words, and a label for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data.columns import Form, problem_rows, show
from modelzoo.data.encoding import Encoding
from modelzoo.data.masking import IGNORED
from modelzoo.data.tasks.label_columns import label_ids, label_table
from modelzoo.data.tasks.spec import EncodedRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_words

__all__ = ["TOKEN_CLASSIFICATION"]


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    words = read_words(rows, columns["tokens"], recipe.source)
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
    table = label_table(values, recipe)
    ids = label_ids(values, table, recipe)
    result.labels = [_align(encoding, row_ids) for encoding, row_ids in zip(encodings, ids, strict=True)]
    kept = sum(label != IGNORED for labels in result.labels for label in labels)
    result.lost_targets = sum(map(len, ids)) - kept
    result.label_names = table.names
    return result


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


TOKEN_CLASSIFICATION = TaskSpec(
    forms=(
        Form(
            task="token_classification",
            roles={
                "tokens": ("tokens", "words"),
                "tags": ("ner_tags", "tags", "pos_tags", "chunk_tags", "labels", "ner", "label"),
            },
            targets=frozenset({"tags"}),
        ),
    ),
    encode=_encode,
    targets="token",
    label_role="tags",
)
