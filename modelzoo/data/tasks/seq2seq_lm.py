"""Text to text: a source and the target that a decoder is to write, or plain texts with holes that it is to fill (T5)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data.columns import TEXT_NAMES, Form, show
from modelzoo.data.encoding import Encoding
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.span_corruption import SpanRule, corrupt, corrupted_lengths, longest_text
from modelzoo.data.tasks.causal_lm import end_of
from modelzoo.data.tasks.cutting import Cut
from modelzoo.data.tasks.spec import EncodedRows, Item, PromptRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["SEQ2SEQ_LM"]

_SENTINELS = (re.compile(r"<extra_id_(\d+)>"), re.compile(r"<s_(\d+)>"))  # of T5 and mT5, and of CPM-2


class _Holes:
    """Hides spans of an item, as a function of (seed, epoch, row) alone."""

    def __init__(self, rule: SpanRule) -> None:
        self._rule = rule

    def draw(self, ids: list[int], *, epoch: int, row: int) -> Item:
        """Return the text with holes, and what stood in them as labels."""
        inputs, labels = corrupt(ids, self._rule, epoch=epoch, row=row)
        return {"input_ids": inputs, "labels": labels, "decoder_attention_mask": [1] * len(labels)}

    def lengths(self, count: int) -> tuple[int, int]:
        """Return the tokens of inputs and labels of a text of `count` tokens."""
        return corrupted_lengths(count, self._rule)


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    if "source" in columns:
        return _pairs(rows, columns, recipe)
    rule = _rule(recipe)
    length = longest_text(recipe.max_length, rule)
    result = EncodedRows(encodings=[], draws=_Holes(rule), form="holes")
    for row, encoding in enumerate(recipe.tokenizer.encode_parts(read_texts(rows, columns["text"], recipe.source))):
        ids = encoding.input_ids
        pieces = [ids[start : start + length] for start in range(0, len(ids), length)]
        # a single token has no place for a hole
        result.encodings += [Encoding(input_ids=piece, row=row) for piece in pieces if len(piece) > 1]
    return result


def _rule(recipe: Recipe) -> SpanRule:
    tokenizer = recipe.tokenizer
    return SpanRule(sentinel_ids=_sentinels(tokenizer), end_id=end_of(tokenizer, "seq2seq_lm"), seed=recipe.seed)


def _cut(recipe: Recipe) -> Cut:
    """Return how texts with holes are cut, for texts that are tokenized already."""
    rule = _rule(recipe)

    def num_targets(counts: Sequence[int]) -> int:
        return sum(corrupted_lengths(count, rule)[1] for count in counts)

    return Cut(form="holes", length=longest_text(recipe.max_length, rule), least=2, draws=_Holes(rule), num_targets=num_targets)


def _pairs(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    tokenizer, end = recipe.tokenizer, end_of(recipe.tokenizer, "seq2seq_lm")
    checks = RowChecks(recipe.source)
    texts: list[str] = []
    targets: list[str] = []
    with checks:
        texts = read_texts(rows, columns["source"], recipe.source)
    with checks:
        targets = [answers[0] for answers in read_targets(rows, columns["target"], recipe.source)]
    checks.finish()
    sources = tokenizer.encode(texts, None, recipe.max_length, recipe.truncation)
    limit = recipe.max_target_length or recipe.max_length
    result = EncodedRows(encodings=[], form="pair")
    labels: list[list[int]] = []
    for row, encoding in enumerate(tokenizer.encode(targets)):
        ids = encoding.input_ids if encoding.input_ids[-1:] == [end] else [*encoding.input_ids, end]
        if len(ids) > limit and recipe.truncation == "error":
            found = f"row {row + 1}: the target has {len(ids)} tokens, limit {limit}"
            raise DataError(f"{recipe.source}: {found}; shorten it, raise max_target_length, or set truncation=longest_first")
        labels.append(ids[:limit])
        result.lost_targets += len(ids) - len(labels[-1])
        source = sources[row]
        result.encodings.append(
            Encoding(input_ids=source.input_ids, row=row, truncated=source.truncated + len(ids) - len(labels[-1]))
        )
    result.labels = labels
    return result


def read_targets(rows: Rows, column: str, source: str) -> list[tuple[str, ...]]:
    """Return the right answers of each row, at least one; the first is learned.

    Args:
        rows: All rows.
        column: Holds a text, a list of texts, or SQuAD's {"text": [...]}.
        source: What the rows are called in errors.

    Raises:
        DataError: If a row has none, or something else; it lists the rows, counted from 1.
    """
    if any(column not in row or isinstance(row[column], str) for row in rows[:1]):
        return [(text,) for text in read_texts(rows, column, source, never_empty="the target")]
    targets, problems = [], []
    for number, row in enumerate(rows, start=1):
        found = _texts_of(row.get(column))
        if found:
            targets.append(found)
        else:
            problems.append(f"row {number}: expected a text or texts in column {column!r}, found {show(row.get(column))}")
    if problems:
        raise problem_rows(source, problems, "give each row a target")
    return targets


def _texts_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        value = value.get("text")
    values: Sequence[Any] = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    values = [each.get("text") if isinstance(each, Mapping) else each for each in values]
    return tuple(values) if all(isinstance(each, str) and each.strip() for each in values) else ()


def _sentinels(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the tokens that stand for holes.

    Raises:
        DataError: If the vocabulary has none.
    """
    vocabulary = tokenizer.get_vocab()
    for pattern in _SENTINELS:
        found = {int(match[1]): token_id for token, token_id in vocabulary.items() if (match := pattern.fullmatch(token))}
        if found:
            return tuple(found[number] for number in sorted(found))
    raise DataError(
        "seq2seq_lm on plain texts hides spans behind sentinels (<extra_id_0>, ...), but the tokenizer has none; give rows with "
        "source and target, or use a T5"
    )


def _prompts(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> PromptRows:
    tokenizer = recipe.tokenizer
    texts = read_texts(rows, columns.get("source") or columns["text"], recipe.source)
    ids = [encoding.input_ids for encoding in tokenizer.encode(texts, None, recipe.max_length)]
    given = read_targets(rows, columns["target"], recipe.source) if "target" in columns and recipe.labelled else []
    return PromptRows(ids, given, (end_of(tokenizer, "seq2seq_lm"),))


SEQ2SEQ_LM = TaskSpec(
    forms=(
        Form(
            task="seq2seq_lm",
            roles={
                "source": ("source", "prompt", "question", "query", "document", "article", "dialogue", "input", "text"),
                "target": ("target", "completion", "answer", "answers", "summary", "highlights", "output", "translation"),
            },
            targets=frozenset({"target"}),
            filled=frozenset({"source", "target"}),
        ),
        Form(task="seq2seq_lm", roles={"text": TEXT_NAMES}, filled=frozenset({"text"})),
    ),
    encode=_encode,
    cut=_cut,
    prompts=_prompts,
    targets="token",
    scores_vocabulary=True,
)
