"""Data sets: targets where they belong, losses counted, wrong rows named, content fingerprinted."""

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import bert_folder, byte_level_folder
from transformers import AutoTokenizer

from modelzoo.data import DataLimits, TokenizedDataset, Tokenizer, build_dataset, collate, count_targets, load_tokenizer
from modelzoo.errors import DataError

PAIRS = [
    {"question": "is the cat on the mat", "passage": "the cat sat on the mat", "label": True},
    {"question": "is it a dog", "passage": "the cat ran fast " * 5, "label": False},
    {"question": "is it", "passage": "the dog ran", "label": False},
]
WORDS = [
    {"tokens": ["the", "catcat", "sat"], "ner_tags": ["O", "B-ANIMAL", "O"]},
    {"tokens": ["fast", "dog", "ran"], "ner_tags": ["O", "B-ANIMAL", "O"]},
]


@pytest.fixture
def bert(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(bert_folder(tmp_path / "bert", config={}))


@pytest.fixture
def roberta(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(byte_level_folder(tmp_path / "roberta", config={}))


def build(rows: list[dict[str, Any]], tokenizer: Tokenizer, task: str = "classification", **options: Any) -> TokenizedDataset:
    return build_dataset(rows, task=task, tokenizer=tokenizer, **{"max_length": 24, "source": "my.jsonl"} | options)


def test_pairs_become_ids_types_and_labels(bert: Tokenizer) -> None:
    data = build(PAIRS, bert, truncation="only_second")
    expected = AutoTokenizer.from_pretrained(str(bert.folder))(
        [row["question"] for row in PAIRS], [row["passage"] for row in PAIRS], max_length=24, truncation="only_second"
    )
    items = [data.item(number) for number in range(len(data))]
    assert [item["input_ids"] for item in items] == expected["input_ids"]
    assert [item["token_type_ids"] for item in items] == expected["token_type_ids"]
    assert [item["labels"] for item in items] == [1, 0, 0]
    assert data.label_names == ("false", "true")
    assert data.lengths == [len(row) for row in expected["input_ids"]]
    assert [data.num_targets(number) for number in range(3)] == [1, 1, 1]


def test_the_report_counts_what_was_cut(bert: Tokenizer) -> None:
    report = build(PAIRS, bert).report
    whole = build(PAIRS, bert, max_length=99)
    assert (report.rows, report.items, report.truncated_rows, report.cut_tokens) == (3, 3, 1, whole.lengths[1] - 24)
    assert (report.longest, report.tokens, report.num_targets) == (24, sum(whole.lengths) - report.cut_tokens, 3)
    assert report.label_counts == {"false": 2, "true": 1}
    assert report.majority_share == pytest.approx(2 / 3)
    assert report.mean_length == pytest.approx(report.tokens / 3)
    assert report.describe() == (
        f"3 rows · 1 truncated (-{report.cut_tokens} tokens) · length mean {report.mean_length:.0f}, longest 24 · 3 targets · "
        "labels false 2, true 1 (majority 66.7%)"
    )


def test_roberta_feeds_no_token_types(roberta: Tokenizer) -> None:
    data = build(PAIRS, roberta, limits=DataLimits(type_vocab_size=1))
    assert list(data.item(0)) == ["input_ids", "labels"]
    assert "token_type_ids" not in collate([data.item(0), data.item(1)], data.pad_id)
    assert data.pad_id == 1


def test_unlabelled_rows_for_prediction(bert: Tokenizer) -> None:
    rows = [{"text": "the cat"}, {"text": "a dog", "label": "unknown"}]
    data = build(rows, bert, labelled=False, label_names=["no", "yes"])
    assert list(data.item(0)) == ["input_ids", "token_type_ids"]
    assert data.label_names == ("no", "yes")
    assert data.num_targets(0) == data.report.num_targets == 0
    assert data.report.majority_share is None


def test_one_label_table_for_all_splits(bert: Tokenizer) -> None:
    train = build([{"text": "a", "label": name} for name in ("b", "c", "a")], bert)
    other = build([{"text": "a", "label": "c"}], bert, label_names=train.label_names)
    assert train.label_names == ("a", "b", "c")
    assert other.item(0)["labels"] == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": None, "label": 1}, r"my.jsonl: row 2: the text in column 'text' is missing; fill or remove the row"),
        ({"label": 1}, r"row 2: the text in column 'text' is missing"),
        ({"text": math.nan, "label": 1}, r"row 2: the text in column 'text' is missing"),
        ({"text": 5, "label": 1}, r"row 2: expected a text in column 'text', found 5 \(int\)"),
        ({"text": " \n", "label": 1}, r"row 2: the text is empty; fill or remove the row"),
        ({"text": "a", "label": None}, r"row 2: the label is missing; give each row a label"),
        ({"text": "a"}, r"row 2: the label is missing"),
        ({"text": "a", "label": math.nan}, r"row 2: the label is missing"),
        ({"text": "a", "label": -1}, r"row 2: label -1 is negative; -1 marks rows without a label"),
        ({"text": "a", "label": [1]}, r"row 2: expected a label .*, found \[1\] \(list\)"),
        ({"text": "a", "label": "one"}, r"my.jsonl: expected labels of one kind, found integer \(0\), text \(\"one\"\)"),
        ({"text": "\ud83d", "label": 1}, r"my.jsonl: row 2: expected Unicode text, found a lone surrogate"),
    ],
)
def test_a_wrong_row_is_named(row: dict[str, Any], message: str, bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build([{"text": "the cat", "label": 0}, row], bert)


def test_all_wrong_rows_are_listed_together(bert: Tokenizer) -> None:
    rows = [{"text": "a", "label": 7 if number % 2 else 0} for number in range(60)]
    with pytest.raises(DataError) as caught:
        build(rows, bert, label_names=["no", "yes"])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("my.jsonl: 30 rows have a problem; correct the label, or set data.label_names")
    assert lines[1] == "  row 2: label 7 is not one of 2 known labels (no, yes)"
    assert lines[-1] == "  ... and 10 more"


def test_a_pair_may_have_one_empty_text(bert: Tokenizer) -> None:
    assert len(build([{"premise": "a cat", "hypothesis": "", "label": 1}], bert)) == 1


def test_no_rows_are_refused(bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"my.jsonl: expected at least one row, found none"):
        build([], bert)


def test_max_rows_takes_the_first(bert: Tokenizer) -> None:
    assert build(PAIRS, bert, limits=DataLimits(max_rows=2)).report.rows == 2


def test_too_long_rows_are_refused_when_asked(bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"my.jsonl: row 2 has 27 tokens, limit 24; shorten the text, raise max_length"):
        build(PAIRS, bert, truncation="error")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (DataLimits(max_length=16), r"my.jsonl: row 2 has 24 tokens, limit 16 \(the model's positions\); set data.max_length=16"),
        (DataLimits(vocab_size=10), r"my.jsonl: row 1, position 1: token id 14, limit 10 rows of the model's embedding"),
        (DataLimits(num_labels=1), r"my.jsonl: row 1: label 1, limit 1 labels of the model \(num_labels\)"),
        (DataLimits(type_vocab_size=1), r"my.jsonl: row 1, position 8: token_type_ids 1, limit 1 token types"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_named(limits: DataLimits, message: str, bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build(PAIRS, bert, limits=limits)


def test_without_max_length_the_smaller_limit_counts(tmp_path: Path, bert: Tokenizer) -> None:
    short = load_tokenizer(bert_folder(tmp_path / "short", config={"model_max_length": 12}))
    assert build(PAIRS, short, max_length=None).report.longest == 12
    assert build(PAIRS, short, max_length=None, limits=DataLimits(max_length=9)).report.longest == 9
    with pytest.raises(DataError, match=r"my.jsonl: expected max_length, as neither tokenizer nor model sets a limit, found none"):
        build(PAIRS, bert, max_length=None)


def test_the_fingerprint_is_of_the_content(bert: Tokenizer) -> None:
    first = build(PAIRS, bert).fingerprint
    assert len(first) == 64
    assert build([dict(row, idx=number) for number, row in enumerate(PAIRS)], bert).fingerprint == first
    others = [
        build(PAIRS[::-1], bert),
        build(PAIRS[:2], bert),
        build(PAIRS, bert, max_length=20),
        build([dict(PAIRS[0], label=False), *PAIRS[1:]], bert),
        build(PAIRS, bert, label_names=["no", "yes", "false", "true"]),
        build(PAIRS, bert, labelled=False),
    ]
    assert len({first, *(data.fingerprint for data in others)}) == 7


def test_words_carry_their_label_on_the_first_token(bert: Tokenizer) -> None:
    data = build(WORDS, bert, "token_classification")
    assert data.label_names == ("B-ANIMAL", "O")
    assert bert.tokens(data.item(0)["input_ids"]) == ["[CLS]", "the", "cat", "##c", "##a", "##t", "sat", "[SEP]"]
    assert data.item(0)["labels"] == [-100, 1, 0, -100, -100, -100, 1, -100]
    assert (data.num_targets(0), data.report.num_targets, data.report.lost_targets) == (3, 6, 0)
    assert data.report.label_counts == {"B-ANIMAL": 2, "O": 4}
    assert count_targets(collate([data.item(0), data.item(1)], data.pad_id)) == 6


def test_word_labels_may_be_ids(bert: Tokenizer) -> None:
    rows = [{"tokens": ["the", "cat"], "tags": [0, 2]}]
    assert build(rows, bert, "token_classification", label_names=["O", "A", "B"]).item(0)["labels"] == [-100, 0, 2, -100]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, r"row 2: 2 words in 'tokens', but 'ner_tags' has 1 tags; give one tag a word"),
        ({"tokens": ["a", "b"], "ner_tags": None}, r"row 2: 2 words in 'tokens', but 'ner_tags' has null"),
        ({"tokens": [], "ner_tags": []}, r"row 2: expected a list of words in column 'tokens', found \[\]"),
        ({"tokens": "a b", "ner_tags": ["O"]}, r"row 2: expected a list of words in column 'tokens', found \"a b\""),
        ({"tokens": ["a", None], "ner_tags": ["O", "O"]}, r"row 2: expected a list of words .*, found \[\"a\", null\]"),
        ({"tokens": ["a"], "ner_tags": [None]}, r"row 2: the label is missing"),
    ],
)
def test_wrong_word_rows_are_named(row: dict[str, Any], message: str, bert: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build([WORDS[0], row], bert, "token_classification")


def test_rows_that_lose_every_target_are_refused_or_counted(bert: Tokenizer) -> None:
    vanishing = {"tokens": ["\u200b"], "ner_tags": ["O"]}  # BERT's normalizer removes it
    with pytest.raises(DataError, match=r"my.jsonl: row 3 has no target after truncation to 24 tokens, and 1 of 3 rows are like"):
        build([*WORDS, vanishing], bert, "token_classification")
    data = build([WORDS[0], vanishing, WORDS[1]], bert, "token_classification", limits=DataLimits(max_lost_share=0.5))
    assert (data.rows, data.report.dropped_rows, data.report.lost_targets) == ([0, 2], 1, 1)
    assert "2 items · 1 dropped (no target)" in data.report.describe()


def test_cut_word_labels_are_counted(bert: Tokenizer) -> None:
    data = build(WORDS, bert, "token_classification", max_length=4)
    assert data.report.lost_targets == 2
    assert data.item(0)["labels"] == [-100, 1, 0, -100]


def test_masked_lm_draws_new_masks_each_epoch(bert: Tokenizer) -> None:
    rows = [{"text": "the cat sat on the mat and the dog ran fast"}, {"text": "a dog"}]
    data = build(rows, bert, "masked_lm", seed=5)
    items = [data.item(0, epoch=epoch) for epoch in range(6)]
    assert items[0] == build(rows, bert, "masked_lm", seed=5).item(0)
    assert len({tuple(item["labels"]) for item in items}) > 1
    plain = bert.encode([rows[0]["text"]])[0].input_ids
    for epoch, item in enumerate(items):
        restored = [old if label == -100 else label for old, label in zip(item["input_ids"], item["labels"], strict=True)]
        assert restored == plain
        assert data.num_targets(0, epoch=epoch) == sum(label != -100 for label in item["labels"]) > 0
    assert data.fingerprint == build(rows, bert, "masked_lm", seed=6).fingerprint


def test_masked_lm_counts_empty_rows_and_needs_a_mask_token(bert: Tokenizer, tmp_path: Path) -> None:
    data = build([{"text": ""}, {"text": "the cat"}, {"text": "  "}], bert, "masked_lm")
    assert (data.rows, data.report.dropped_rows) == ([1], 2)
    with pytest.raises(DataError, match=r"my.jsonl: expected rows with text, found 2 rows without any"):
        build([{"text": ""}, {"text": " "}], bert, "masked_lm")
    gpt2 = load_tokenizer(byte_level_folder(tmp_path / "gpt2", config={}, model_type="gpt2"))
    with pytest.raises(DataError, match="masked_lm needs a tokenizer with a mask token, found none"):
        build([{"text": "the cat"}], gpt2, "masked_lm")
