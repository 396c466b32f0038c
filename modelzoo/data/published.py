"""Published data sets as rows of the task that a model is trained on: the eight of SuperGLUE (Wang et al., 2019), and LCQMC.

Each is one line of a table: how a row is read, in the official release's form or the hub's, and what of it an encoder, a decoder
and an encoder-decoder see. Encoders get texts and labels, or choices; decoders a prompt and words to choose from;
encoder-decoders the text form of T5 (Raffel et al., 2020, appendix D).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.data.published_readers import Question, Reader, boolq, copa, entailment, lcqmc, multirc, record, wic, wsc
from modelzoo.data.row_problems import problem_rows
from modelzoo.errors import DataError

__all__ = ["PUBLISHED", "published_rows"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Set:
    """A data set. Braces are filled from what its rows say."""

    read: Reader
    labels: tuple[str, ...] = ()
    """Names of a classifier's labels, in the order of the hub; none where each row has choices of its own."""
    first: str
    """An encoder's first text."""
    second: str
    """Its second text, or that of a choice; empty for none."""
    prompt: str
    """What a decoder reads."""
    words: tuple[str, ...] | str
    """What it may write: a text a label, or the form of each choice."""
    source: str
    """What an encoder-decoder reads."""
    targets: tuple[str, ...] | str
    """What it may write."""
    name: str = ""
    """What a choice stands for, where answers are compared with it."""


_FALSE_TRUE = ("false", "true")
_NO_YES = (" no", " yes")
_WRITTEN = ("False", "True")
PUBLISHED: Mapping[str, _Set] = {
    "superglue/boolq": _Set(
        read=boolq,
        labels=_FALSE_TRUE,
        first="{question}",
        second="{passage}",
        prompt="{passage}\nQuestion: {asked}\nAnswer:",
        words=_NO_YES,
        source="boolq passage: {passage} question: {question}",
        targets=_WRITTEN,
    ),
    "superglue/cb": _Set(
        read=entailment(("entailment", "contradiction", "neutral")),
        labels=("entailment", "contradiction", "neutral"),
        first="{premise}",
        second="{hypothesis}",
        prompt="{premise}\nQuestion: {hypothesis}. True, False, or Neither?\nAnswer:",
        words=(" True", " False", " Neither"),
        source="cb hypothesis: {hypothesis} premise: {premise}",
        targets=("entailment", "contradiction", "neutral"),
    ),
    "superglue/copa": _Set(
        read=copa,
        first="{premise} {asked}",
        second="{choice}",
        prompt="{begun} {link}",
        words=" {continued}",
        source="copa choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}",
        targets="{number}",
    ),
    "superglue/multirc": _Set(
        read=multirc,
        labels=_FALSE_TRUE,
        first="{paragraph}",
        second="{question} {answer}",
        prompt="{paragraph}\nQuestion: {question}\nAnswer: {answer}\nIs this answer correct?",
        words=_NO_YES,
        source="multirc question: {question} answer: {answer} paragraph: {paragraph}",
        targets=_WRITTEN,
    ),
    "superglue/record": _Set(
        read=record,
        first="{passage}",
        second="{filled}",
        prompt="{passage}\n",
        words="{filled}",
        source="record query: {query} entities: {entities} passage: {passage}",
        targets="{entity}",
        name="{entity}",
    ),
    "superglue/rte": _Set(
        read=entailment(("entailment", "not_entailment")),
        labels=("entailment", "not_entailment"),
        first="{premise}",
        second="{hypothesis}",
        prompt="{premise}\nQuestion: {hypothesis} True or False?\nAnswer:",
        words=(" True", " False"),
        source="rte hypothesis: {hypothesis} premise: {premise}",
        targets=("entailment", "not_entailment"),
    ),
    "superglue/wic": _Set(
        read=wic,
        labels=_FALSE_TRUE,
        first="{marked1}",
        second="{marked2}",
        prompt="{sentence1}\n{sentence2}\nQuestion: Is the word '{word}' used in the same sense in both sentences?\nAnswer:",
        words=_NO_YES,
        source="wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
        targets=_WRITTEN,
    ),
    "superglue/wsc": _Set(
        read=wsc,
        labels=_FALSE_TRUE,
        first="{marked}",
        second="",
        prompt='Passage: {marked}\nQuestion: In the passage above, does the pronoun "{span2}" refer to "{span1}"?\nAnswer:',
        words=_NO_YES,
        source="wsc text: {marked}",
        targets=_WRITTEN,
    ),
    "lcqmc": _Set(
        read=lcqmc,
        labels=("0", "1"),
        first="{sentence1}",
        second="{sentence2}",
        prompt="“{sentence1}”与“{sentence2}”的意思",
        words=("不同", "相同"),
        source="“{sentence1}”与“{sentence2}”的意思",
        targets=("不同", "相同"),
    ),
}
"""The data sets by the names that `data.form` has for them."""


def published_rows(rows: Rows, form: str, task: str, *, source: str = "data", advice: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a published data set as rows of a task, whose columns have the names that the task looks for.

    Args:
        rows: As the official .jsonl files or the hub have them.
        form: One of PUBLISHED.
        task: classification or multiple_choice (whichever the data set is), causal_lm or seq2seq_lm.
        source: What the rows are called in errors.
        advice: What to do about bad rows; None for rows of a recipe.

    Returns:
        One row a question: MultiRC and ReCoRD have several in one row of the official files. Where nobody knows the answer, the
        label is None.

    Raises:
        DataError: If a row lacks a column or has a wrong value, naming row (counted from 1) and column, or the task does not fit.
    """
    found, own = PUBLISHED[form], "classification" if PUBLISHED[form].labels else "multiple_choice"
    if task not in (own, "causal_lm", "seq2seq_lm"):
        raise DataError(f"data.form={form} is for model.task={own}, causal_lm or seq2seq_lm, found {task}")
    made: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, row in enumerate(rows, start=1):
        try:
            made += [_as_row(question, found, task) for question in found.read(row)]
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        raise problem_rows(source, problems, advice or f"give rows as {form} has them, or leave data.form out")
    return made


def _as_row(question: Question, found: _Set, task: str) -> dict[str, Any]:
    """Return one question as a row of the task."""
    fields, label = question.fields, question.label
    extra: dict[str, Any] = {} if question.group is None else {"question_group": question.group}
    if task == "classification":
        second = {"text_b": found.second.format(**fields)} if found.second else {}
        return {"text_a": found.first.format(**fields), **second, "label": None if label is None else found.labels[label], **extra}
    form = {"multiple_choice": found.second, "causal_lm": found.words, "seq2seq_lm": found.targets}[task]
    choices = list(form) if isinstance(form, tuple) else [form.format(**fields, **choice) for choice in question.choices]
    if found.name:
        extra |= {"names": [found.name.format(**choice) for choice in question.choices], "answers": list(question.answers)}
    read = {"multiple_choice": found.first, "causal_lm": found.prompt, "seq2seq_lm": found.source}[task].format(**fields)
    return {"source" if task == "seq2seq_lm" else "prompt": read, "choices": choices, "label": label, **extra}
