"""What stands in a row of each published data set: SuperGLUE's in the official release's form and in the hub's, and LCQMC's."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.data.columns import show

__all__ = ["Question", "Reader", "boolq", "copa", "entailment", "lcqmc", "multirc", "record", "wic", "wsc"]

Row = Mapping[str, Any]

_BREAKS = (re.compile("<br>"), " "), (re.compile("</?b>"), "")
_HIGHLIGHTS = (re.compile(r"([.?!\"'])\n@highlight\n"), r"\1 "), (re.compile(r"\n@highlight\n"), ". ")
_SENTENCE = re.compile(r"^(?!I\b)\w")  # its first letter, which is small where the sentence goes on
_PLACEHOLDER = "@placeholder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One decision of a row."""

    fields: Mapping[str, str]
    """Its texts by name."""
    label: int | None
    """Number of the right label or choice; None where nobody knows it."""
    choices: Sequence[Mapping[str, str]] = ()
    """The texts of each choice, where a row has its own."""
    answers: tuple[str, ...] = ()
    """All right answers, where several may be."""
    group: str | None = None
    """What questions that are judged together share."""


Reader = Callable[[Row], Iterator[Question]]


def boolq(row: Row) -> Iterator[Question]:
    """Read a row of BoolQ: question, passage, label."""
    question, passage = _text(row, "question"), _text(row, "passage")
    fields = {"question": question, "passage": passage, "asked": question.rstrip(" ?") + "?"}
    yield Question(fields=fields, label=_truth(row))


def entailment(names: tuple[str, ...]) -> Reader:
    """Return the reader of CB's and RTE's rows: premise, hypothesis, label.

    Args:
        names: Of the labels by id.
    """

    def read(row: Row) -> Iterator[Question]:
        fields = {"premise": _text(row, "premise"), "hypothesis": _text(row, "hypothesis")}
        yield Question(fields=fields, label=_label(row, names))

    return read


def copa(row: Row) -> Iterator[Question]:
    """Read a row of COPA: premise, question (cause or effect), choice1, choice2, label."""
    fields = {name: _text(row, name) for name in ("premise", "question", "choice1", "choice2")}
    if fields["question"] not in ("cause", "effect"):
        raise ValueError(f"expected cause or effect in column 'question', found {show(row['question'])}")
    is_cause = fields["question"] == "cause"
    fields |= {
        "asked": "What was the cause of this?" if is_cause else "What happened as a result?",
        "begun": fields["premise"].rstrip(" ."),
        "link": "because" if is_cause else "so",
    }
    choices = [
        {"choice": fields[name], "number": name, "continued": _SENTENCE.sub(lambda start: start[0].lower(), fields[name])}
        for name in ("choice1", "choice2")
    ]
    yield Question(fields=fields, label=_label(row, ("choice1", "choice2")), choices=choices)


def lcqmc(row: Row) -> Iterator[Question]:
    """Read a row of LCQMC's form (AFQMC, BUSTM, PAWS-X): sentence1 and sentence2, or text_a and text_b, label."""
    names = ("sentence1", "sentence2") if "sentence1" in row else ("text_a", "text_b")
    fields = {"sentence1": _text(row, names[0]), "sentence2": _text(row, names[1])}
    yield Question(fields=fields, label=_label(row, ("0", "1")))


def multirc(row: Row) -> Iterator[Question]:
    """Read a passage of MultiRC with its questions and their answers, or the hub's row of one answer.

    Answers of a question are a group: each is right or wrong by itself. An answer may be empty; one of the real ones is.
    """
    if isinstance(row.get("passage"), Mapping):
        paragraph = _clean(_text(row["passage"], "text", "passage."), _BREAKS)
        for question in _items(row["passage"], "questions", "passage."):
            group = f"{row.get('idx')}.{question.get('idx')}"
            asked = _text(question, "question", "passage.questions.")
            for answer in _items(question, "answers", "passage.questions."):
                texts = {"question": asked, "answer": _text(answer, "text", "passage.questions.answers.", empty=True)}
                label = _truth(answer, "passage.questions.answers.")
                yield Question(fields={"paragraph": paragraph, **texts}, label=label, group=group)
        return
    fields = {name: _text(row, name, empty=name == "answer") for name in ("paragraph", "question", "answer")}
    fields["paragraph"] = _clean(fields["paragraph"], _BREAKS)
    place = row.get("idx")
    if not isinstance(place, Mapping) or not {"paragraph", "question"} <= set(place):
        raise ValueError(f"expected paragraph and question in column 'idx', found {show(place)}")
    yield Question(fields=fields, label=_truth(row), group=f"{place['paragraph']}.{place['question']}")


def record(row: Row) -> Iterator[Question]:
    """Read a passage of ReCoRD with its queries, or the hub's row of one query.

    Entities with the same text are one choice. The first of the passage that is an answer is the one that is learned.
    """
    passage = row.get("passage")
    if isinstance(passage, Mapping):
        text = _text(passage, "text", "passage.")
        spans = [_span(entity, text) for entity in _items(passage, "entities", "passage.")]
        for query in _items(row, "qas"):
            answers = (
                [_text(answer, "text", "qas.answers.") for answer in _items(query, "answers", "qas.")] if "answers" in query else []
            )
            yield _query(text, _text(query, "query", "qas."), spans, answers)
        return
    answers = _texts(row, "answers") if row.get("answers") is not None else []
    yield _query(_text(row, "passage"), _text(row, "query"), _texts(row, "entities"), answers)


def _query(passage: str, query: str, entities: Sequence[str], answers: Sequence[str]) -> Question:
    if _PLACEHOLDER not in query:
        raise ValueError(f"expected {_PLACEHOLDER} in column 'query', found {show(query)}")
    names = list(dict.fromkeys(entities))
    if not names:
        raise ValueError("expected at least one entity in column 'entities', found none")
    label = next((number for number, name in enumerate(names) if name in answers), None)
    if answers and label is None:
        raise ValueError(f"expected an answer of column 'answers' among the entities, found {show(list(answers))}")
    fields = {"passage": _clean(passage, _HIGHLIGHTS), "query": query, "entities": ", ".join(names)}
    choices = [{"entity": name, "filled": query.replace(_PLACEHOLDER, name)} for name in names]
    return Question(fields=fields, label=label, choices=choices, answers=tuple(dict.fromkeys(answers)))


def wic(row: Row) -> Iterator[Question]:
    """Read a row of WiC: word, sentence1, sentence2, where the word stands in each (start1, end1, start2, end2), label.

    The word is marked with asterisks in marked1 and marked2.
    """
    fields = {name: _text(row, name) for name in ("word", "sentence1", "sentence2")}
    for number in ("1", "2"):
        sentence = fields[f"sentence{number}"]
        start, end = row.get(f"start{number}"), row.get(f"end{number}")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(sentence)):
            raise ValueError(
                f"expected 0 <= start{number} < end{number} <= {len(sentence)}, the characters of column 'sentence{number}', "
                f"found {show(start)} and {show(end)}"
            )
        fields[f"marked{number}"] = f"{sentence[:start]}*{sentence[start:end]}*{sentence[end:]}"
    yield Question(fields=fields, label=_truth(row))


def wsc(row: Row) -> Iterator[Question]:
    """Read a row of WSC: text, label, and two spans by their text and the number of their first word.

    The spans are marked as T5's are: * before and after the first one, # around the pronoun.
    """
    text = _text(row, "text")
    place, prefix = (row["target"], "target.") if isinstance(row.get("target"), Mapping) else (row, "")
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    marked, fields = text, {}
    spans = []
    for name, mark in (("span1", "*"), ("span2", "#")):
        span, index = _text(place, f"{name}_text", prefix), place.get(f"{name}_index")
        if not isinstance(index, int) or not 0 <= index < len(starts):
            raise ValueError(
                f"expected the number of a word in column '{prefix}{name}_index', 0 to {len(starts) - 1}, found {show(index)}"
            )
        fields[name] = span
        spans.append((*_place_of(span, text, starts, index), mark))
    for start, end, mark in sorted(spans, reverse=True):
        marked = f"{marked[:start]}{mark} {marked[start:end]} {mark}{marked[end:]}"
    yield Question(fields={**fields, "text": text, "marked": marked}, label=_truth(row))


def _place_of(span: str, text: str, starts: Sequence[int], index: int) -> tuple[int, int]:
    """Return where a span begins and ends: in its word, or, where the number is off, at the nearest word that begins it."""
    pattern = re.compile(r"\s+".join(map(re.escape, span.split())), re.IGNORECASE)
    for word in sorted(range(len(starts)), key=lambda word: abs(word - index)):
        found = pattern.search(text, starts[word])
        if found is not None and found.start() < (starts[word + 1] if word + 1 < len(starts) else len(text)):
            return found.span()
    raise ValueError(f"expected the span {show(span)} in column 'text', found {show(text)}")


def _text(row: Row, name: str, prefix: str = "", *, empty: bool = False) -> str:
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, str) or not (empty or value.strip()):
        raise ValueError(f"expected a text in column '{prefix}{name}', found {'nothing' if value is None else show(value)}")
    return value


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"expected a list of texts in column '{name}', found {show(value)}")
    return list(value)


def _items(row: Row, name: str, prefix: str = "") -> list[Row]:
    value = row.get(name)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(each, Mapping) for each in value):
        raise ValueError(f"expected a list of objects in column '{prefix}{name}', found {show(value)}")
    return list(value)


def _span(entity: Row, text: str) -> str:
    """Return the text of one of ReCoRD's entities, whose last character is the one at `end`."""
    start, end = entity.get("start"), entity.get("end")
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < len(text)):
        raise ValueError(f"expected start and end in column 'passage.entities', 0 to {len(text) - 1}, found {show(dict(entity))}")
    return text[start : end + 1]


def _truth(row: Row, prefix: str = "") -> int | None:
    return _label(row, ("false", "true"), prefix)


def _label(row: Row, names: tuple[str, ...], prefix: str = "") -> int | None:
    """Return the number of a label that is a name, a truth value or a number; None where it is missing or -1."""
    value = row.get("label")
    if value is None or (value == -1 and not isinstance(value, bool)):
        return None
    if isinstance(value, bool) and names != ("false", "true"):
        value = str(value)
    if isinstance(value, str) and value.lower() in names:
        return names.index(value.lower())
    if isinstance(value, int | float) and value in range(len(names)):
        return int(value)
    raise ValueError(f"expected {' or '.join(names)} in column '{prefix}label', found {show(value)}")


def _clean(text: str, replacements: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, by in replacements:
        text = pattern.sub(by, text)
    return text
