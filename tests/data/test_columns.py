"""Columns are found by the names that people use, and a missing one says what to add."""

import pytest

from modelzoo.data.tasks import TASKS, find_columns
from modelzoo.errors import DataError

LONG = "a text of more than twenty characters"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("text label", {"text_a": "text", "label": "label"}),
        ("idx sentence label", {"text_a": "sentence", "label": "label"}),
        ("text_a text_b label", {"text_a": "text_a", "text_b": "text_b", "label": "label"}),
        ("text_a label", {"text_a": "text_a", "label": "label"}),
        ("sentence1 sentence2 label", {"text_a": "sentence1", "text_b": "sentence2", "label": "label"}),
        ("premise hypothesis label idx", {"text_a": "premise", "text_b": "hypothesis", "label": "label"}),
        ("question passage answer", {"text_a": "question", "text_b": "passage", "label": "answer"}),
        ("question1 question2 labels", {"text_a": "question1", "text_b": "question2", "label": "labels"}),
        ("query document target", {"text_a": "query", "text_b": "document", "label": "target"}),
        ("content class", {"text_a": "content", "label": "class"}),
    ],
)
def test_classification_forms(names: str, expected: dict[str, str]) -> None:
    row = dict.fromkeys(names.split(), LONG)
    assert find_columns([row], "classification") == expected
    unlabelled = {role: column for role, column in expected.items() if role != "label"}
    assert find_columns([row], "classification", labelled=False) == unlabelled


@pytest.mark.parametrize(
    ("task", "names", "expected"),
    [
        ("token_classification", "id tokens ner_tags", {"tokens": "tokens", "tags": "ner_tags"}),
        ("token_classification", "words labels", {"tokens": "words", "tags": "labels"}),
        ("question_answering", "question context answers", dict(zip(*[["question", "context", "answers"]] * 2, strict=True))),
        ("masked_lm", "text", {"text": "text"}),
        ("masked_lm", "id sentence", {"text": "sentence"}),
    ],
)
def test_other_tasks(task: str, names: str, expected: dict[str, str]) -> None:
    assert find_columns([dict.fromkeys(names.split(), "x")], task) == expected


def test_told_columns_win_and_the_rest_is_found() -> None:
    row = {"question": LONG, "passage": LONG, "other": LONG, "label": 1, "answer": 0}
    told = find_columns([row], "classification", {"label": "answer"})
    assert told == {"text_a": "question", "text_b": "passage", "label": "answer"}
    assert find_columns([row], "classification", {"text": "other"}) == {"text_a": "other", "label": "label"}
    pair = {"text_a": "other", "text_b": "question", "label": "label"}
    assert find_columns([row], "classification", {"text": "other", "pair": "question"}) == pair


def test_a_missing_column_shows_columns_first_row_and_the_lines_to_add() -> None:
    rows = [{"query_text": LONG, "body": LONG + " " + LONG, "answer_is": True}]
    with pytest.raises(DataError) as caught:
        find_columns(rows, "classification", source="my.jsonl")
    assert str(caught.value).splitlines() == [
        "my.jsonl: column 'text' not found",
        "  columns found   query_text, body, answer_is",
        f'  row 1           {{"query_text": "{LONG}", "body": "{LONG} {LONG}", "answer_is": t...',
        "  looks like classification.  add to your recipe:",
        "      data:",
        "        columns: {text_a: query_text, text_b: body, label: answer_is}",
        "  or to the command: data.columns.text_a=query_text data.columns.text_b=body data.columns.label=answer_is",
    ]
    with pytest.raises(DataError) as caught:
        find_columns(rows, "classification", source="my.jsonl", asker="call")
    assert str(caught.value).splitlines()[3:] == [
        "  looks like classification.  add to the command:",
        "      columns.text_a=query_text columns.text_b=body columns.label=answer_is",
        "  or in Python: columns={'text_a': 'query_text', 'text_b': 'body', 'label': 'answer_is'}",
    ]


def test_rows_of_no_form_are_shown_all_forms_and_the_lines_for_the_nearest() -> None:
    with pytest.raises(DataError) as caught:
        find_columns([{"id": "1", "ask": "how are you", "reply": "well"}], "seq2seq_lm", source="my.csv")
    assert str(caught.value).splitlines() == [
        "my.csv: its columns are none that seq2seq_lm knows",
        "  columns found   id, ask, reply",
        '  row 1           {"id": "1", "ask": "how are you", "reply": "well"}',
        "  expected        source, choices, label; or source, target; or text",
        "  add to your recipe:",
        "      data:",
        "        columns: {source: ask, target: reply}",
        "  or to the command: data.columns.source=ask data.columns.target=reply",
    ]
    with pytest.raises(DataError, match=r"columns: \{text: body\}"):
        find_columns([{"body": "a text"}], "causal_lm")
    with pytest.raises(DataError, match=r"columns: \{messages: turns\}"):
        find_columns([{"turns": [{"role": "user"}]}], "causal_lm")


def test_names_that_a_recipe_brings_and_rows_lack_say_how_to_name_them() -> None:
    told = {"source": "question: {question} context: {context}", "target": "answers"}
    with pytest.raises(DataError, match=r"column 'question' of data.columns.source not found") as caught:
        find_columns([{"q": "how are you", "a": "well"}], "seq2seq_lm", told)
    assert "data.columns.source=q data.columns.target=a" in str(caught.value)


def test_a_missing_label_keeps_the_texts_that_were_found() -> None:
    with pytest.raises(
        DataError, match=r"column 'label' not found(.|\n)*columns: \{text_a: premise, text_b: hypothesis, label: gold\}"
    ):
        find_columns([{"premise": LONG, "hypothesis": LONG, "gold": "yes"}], "classification")


def test_wrong_mappings_are_refused() -> None:
    row = {"text": LONG, "label": 1}
    with pytest.raises(DataError, match=r"found 'lable'; did you mean label\?"):
        find_columns([row], "classification", {"lable": "label"})
    with pytest.raises(DataError, match=r"column 'labell' of data.columns.label not found; did you mean label\?\n  columns found"):
        find_columns([row], "classification", {"label": "labell"})
    with pytest.raises(DataError, match="expected text_a beside text_b=text, found it alone"):
        find_columns([row], "classification", {"text_b": "text"})
    with pytest.raises(DataError, match=r"expected a task with a data form \(classification, .*\), found 'base'"):
        find_columns([row], "base")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_names_a_missing_column(task: str) -> None:
    with pytest.raises(
        DataError, match=r"data: (column '\w+' not found|its columns are none that \w+ knows)\n  columns found   zzz\n"
    ):
        find_columns([{"zzz": 3}], task)
