"""Answers land on the tokens that Hugging Face's own preparation finds, in every window."""

import random
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import bert_folder, byte_level_folder
from transformers import AutoTokenizer

from modelzoo.data import DataLimits, TokenizedDataset, Tokenizer, build_dataset, collate, load_tokenizer
from modelzoo.errors import DataError

CONTEXT = "the cat sat on the mat and the dog ran fast to the café"


def row(text: str, context: str = CONTEXT, question: str = "who sat") -> dict[str, Any]:
    return {"question": question, "context": context, "answers": {"text": [text], "answer_start": [context.index(text)]}}


def build(rows: list[dict[str, Any]], tokenizer: Tokenizer, max_length: int = 16, **options: Any) -> TokenizedDataset:
    limits = DataLimits(window_stride=options.pop("stride", 4))
    options = {"source": "squad.json", "limits": limits} | options
    return build_dataset(rows, task="question_answering", tokenizer=tokenizer, max_length=max_length, **options)


@pytest.fixture
def bert(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(bert_folder(tmp_path / "bert", config={}))


def reference(folder: Path, rows: list[dict[str, Any]], max_length: int, stride: int) -> list[tuple[list[int], int, int]]:
    """The loop of transformers' examples/pytorch/question-answering/run_qa.py."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    encoded = tokenizer(
        [item["question"].lstrip() for item in rows],
        [item["context"] for item in rows],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    result = []
    for number, offsets in enumerate(encoded["offset_mapping"]):
        ids = encoded["input_ids"][number]
        cls_index = ids.index(tokenizer.cls_token_id)
        sequence_ids = encoded.sequence_ids(number)
        answers = rows[encoded["overflow_to_sample_mapping"][number]]["answers"]
        if len(answers["answer_start"]) == 0:
            result.append((ids, cls_index, cls_index))
            continue
        start_char = answers["answer_start"][0]
        end_char = start_char + len(answers["text"][0])
        start = 0
        while sequence_ids[start] != 1:
            start += 1
        end = len(ids) - 1
        while sequence_ids[end] != 1:
            end -= 1
        if not (offsets[start][0] <= start_char and offsets[end][1] >= end_char):
            result.append((ids, cls_index, cls_index))
            continue
        while start < len(offsets) and offsets[start][0] <= start_char:
            start += 1
        while offsets[end][1] >= end_char:
            end -= 1
        result.append((ids, start - 1, end + 1))
    return result


def random_rows(words: list[str]) -> list[dict[str, Any]]:
    draw = random.Random(3)
    rows = []
    for _ in range(40):
        context = " ".join(draw.choices(words, k=draw.randrange(3, 40)))
        start = draw.randrange(len(context) - 2)
        end = draw.randrange(start + 1, min(len(context), start + 15) + 1)
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if draw.random() < 0.9 and context[start:end] == context[start:end].strip():
            answers = {"text": [context[start:end]], "answer_start": [start]}
        rows.append({"question": "  who is it", "context": context, "answers": answers})
    return rows


@pytest.mark.parametrize("make", [bert_folder, byte_level_folder])
def test_positions_equal_run_qa(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, config={})
    rows = random_rows(["the", "cat", "sat", "mat", "dogdog", "ran", "it"])
    data = build(rows, load_tokenizer(folder), max_length=40, stride=8)
    expected = reference(folder, rows, 40, 8)
    assert len(data) == len(expected)
    compared = 0
    for number, (ids, start, end) in enumerate(expected):
        item = data.item(number)
        assert item["input_ids"] == ids
        if start > end:  # run_qa.py walks past the context into the separator when the last token holds the answer's start
            start = end
        else:
            compared += 1
        assert (item["start_positions"], item["end_positions"]) == (start, end)
    assert compared > 0.9 * len(expected)


@pytest.mark.parametrize("make", [bert_folder, byte_level_folder])
def test_spans_hold_the_answer_where_characters_are_several_tokens(make: Any, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make(tmp_path, config={"do_lower_case": False} if make is bert_folder else {}))
    rows = random_rows(["the", "é", "caté", "中文", "sat"])
    data = build(rows, tokenizer, max_length=48, stride=8)
    checked = 0
    for number in range(len(data)):
        item, offsets = data.item(number), data.context_offsets(number)
        start, end = item["start_positions"], item["end_positions"]
        if start:
            source = rows[data.rows[number]]
            answer, first, last = source["answers"]["text"][0], offsets[start], offsets[end]
            assert start <= end
            assert first is not None
            assert last is not None
            assert answer in source["context"][first[0] : last[1]]
            text = tokenizer.decode(item["input_ids"][start : end + 1])
            if make is byte_level_folder and "\ufffd" not in text:  # a window may begin inside a character
                assert answer in text
            checked += 1
    assert checked > 20


def test_an_answer_of_white_space_is_the_two_tokens_around_it(bert: Tokenizer) -> None:
    data = build([{"question": "who", "context": "cat dog", "answers": {"text": [" "], "answer_start": [3]}}], bert)
    item = data.item(0)
    assert (item["start_positions"], item["end_positions"]) == (3, 4)


def test_every_answer_is_whole_in_some_window_and_reads_the_same(bert: Tokenizer) -> None:
    rows = [row(text) for text in ("the cat", "mat", "dog ran fast", "café")]
    data = build(rows, bert)
    found = set()
    for number in range(len(data)):
        item = data.item(number)
        if item["start_positions"]:
            offsets = data.context_offsets(number)
            first, last = offsets[item["start_positions"]], offsets[item["end_positions"]]
            assert first is not None
            assert last is not None
            assert CONTEXT[first[0] : last[1]] == rows[data.rows[number]]["answers"]["text"][0]
            found.add(data.rows[number])
    assert found == {0, 1, 2, 3}
    assert data.report.rows == 4
    assert data.report.items == len(data) > 4
    assert data.report.num_targets == len(data)
    assert set(collate([data.item(0), data.item(1)], 0)) >= {"start_positions", "end_positions", "attention_mask"}


def test_context_offsets_are_of_the_context_alone(bert: Tokenizer) -> None:
    data = build([row("mat")], bert)
    offsets = data.context_offsets(0)
    assert offsets[:4] == [None] * 4  # [CLS] who sat [SEP]
    assert offsets[4] == (0, 3)
    assert offsets[-1] is None
    other = build_dataset([{"text": "a", "label": 1}], task="classification", tokenizer=bert, max_length=9)
    with pytest.raises(DataError, match="context offsets belong to question_answering, found task classification"):
        other.context_offsets(0)


@pytest.mark.parametrize("answers", [[], None, {"text": [], "answer_start": []}], ids=["empty list", "null", "empty columns"])
def test_unanswerable_questions_point_to_the_classification_token(answers: Any, bert: Tokenizer) -> None:
    data = build([{"question": "who", "context": CONTEXT, "answers": answers}], bert)
    assert all((data.item(n)["start_positions"], data.item(n)["end_positions"]) == (0, 0) for n in range(len(data)))


def test_the_original_list_form_of_answers(bert: Tokenizer) -> None:
    answers = [{"text": "mat", "answer_start": CONTEXT.index("mat")}, {"text": "cat", "answer_start": 4}]
    listed = build([{"question": "who sat", "context": CONTEXT, "answers": answers}], bert)
    assert listed.fingerprint == build([row("mat")], bert).fingerprint


def test_prediction_needs_no_answers(bert: Tokenizer) -> None:
    data = build([{"question": "who", "context": CONTEXT}], bert, labelled=False)
    assert list(data.item(0)) == ["input_ids", "token_type_ids"]
    assert data.num_targets(0) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"answers": {"text": ["mat"], "answer_start": [0]}},
            r'row 2: expected the answer "mat" at character 0 of the context, found "the"',
        ),
        ({"answers": {"text": ["mat"], "answer_start": [-3]}}, r'expected the answer "mat" at character -3'),
        ({"answers": {"text": [""], "answer_start": [0]}}, r'expected the answer "" at character 0'),
        (
            {"answers": {"text": ["mat"], "answer_start": ["0"]}},
            r'expected a text and a whole number as answer, found "mat" and "0"',
        ),
        ({"answers": {"text": ["mat"], "answer_start": []}}, r'as many texts as answer_start numbers, found \["mat"\] and \[\]'),
        ({"answers": {"text": 5, "answer_start": None}}, r"as many texts as answer_start numbers, found 5 and null"),
        ({"answers": "mat"}, r'expected answers like \{"text": \["..."\], "answer_start": \[0\]\}, found "mat"'),
        ({"context": " "}, r"row 2: the context is empty"),
        ({"context": None}, r"row 2: the text in column 'context' is missing"),
        ({"question": "who " * 20}, r"row 2: max_length=16 leaves 0 tokens of room for a window beside 3 special tokens and 20"),
    ],
)
def test_wrong_rows_are_named(change: dict[str, Any], message: str, bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build([row("mat"), {**row("mat"), **change}], bert)


def test_a_tokenizer_without_classification_token_is_refused(tmp_path: Path) -> None:
    gpt2 = load_tokenizer(byte_level_folder(tmp_path, config={}, model_type="gpt2"))
    with pytest.raises(DataError, match=r"needs a tokenizer with a classification token \(\[CLS\], <s>\), found none"):
        build([row("mat")], gpt2, max_length=64)
