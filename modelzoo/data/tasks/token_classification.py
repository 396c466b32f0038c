"""Token classification: a list of words, and a label for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data.columns import Form, show
from modelzoo.data.encoding import Encoding
from modelzoo.data.masking import IGNORED
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.tasks.label_columns import label_ids, label_table
from modelzoo.data.tasks.spec import EncodedRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_words

__all__ = ["TOKEN_CLASSIFICATION"]


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    checks = RowChecks(recipe.source)
    words: list[list[str]] = []
    ids: list[list[int]] | None = None
    result = EncodedRows(encodings=[], label_names=tuple(recipe.label_names or ()))
    with checks:
        words = read_words(rows, columns["tokens"], recipe.source)
    if "tags" in columns:
        with checks:
            _require_tags(rows, columns["tokens"], columns["tags"], recipe.source)
        with checks:
            tags = [row.get(columns["tags"]) for row in rows]
            values: list[list[Any]] = [list(row_tags) if isinstance(row_tags, list | tuple) else [] for row_tags in tags]
            table = label_table(values, recipe)
            ids = label_ids(values, table, recipe)
            result.label_names = table.names
    checks.finish()
    result.encodings = recipe.tokenizer.encode_words(words, recipe.max_length, recipe.truncation)
    if ids is not None:
        result.labels = [_align(encoding, row_ids) for encoding, row_ids in zip(result.encodings, ids, strict=True)]
        kept = sum(label != IGNORED for labels in result.labels for label in labels)
        result.lost_targets = sum(map(len, ids)) - kept
    return result


def _require_tags(rows: Rows, tokens: str, tags: str, source: str) -> None:
    """Refuse rows without a tag for each word; words that are no list are for `read_words` to say."""
    problems = []
    for number, row in enumerate(rows, start=1):
        words, given = row.get(tokens), row.get(tags)
        if not isinstance(words, list | tuple) or (isinstance(given, list | tuple) and len(given) == len(words)):
            continue
        problems.append(f"row {number}: {len(words)} words in {tokens!r}, but {tags!r} has {_size(given)}")
    if problems:
        raise problem_rows(source, problems, "give one tag a word")


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
