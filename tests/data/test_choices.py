"""Rows with choices: what is learned and compared, what is cut, and which rows are refused."""

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import bert_folder, byte_level_folder

from modelzoo.data import TokenizedDataset, Tokenizer, build_dataset, collate, load_tokenizer
from modelzoo.data.limits import DataLimits
from modelzoo.data.tasks import Recipe, encode_candidates, encode_prompts
from modelzoo.errors import DataError

Row = dict[str, Any]
ROWS: list[Row] = [
    {"prompt": "the cat", "choices": [" sat", " is a cat", " ran"], "label": 1},
    {"prompt": "the cat sat on the", "choices": [" cat", " sat"], "label": 0},
]


@pytest.fixture
def gpt2(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(byte_level_folder(tmp_path / "gpt2", model_type="gpt2"))


@pytest.fixture
def bert(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(bert_folder(tmp_path / "bert"))


def causal(tokenizer: Tokenizer, **changes: Any) -> Recipe:
    return Recipe(**({"task": "causal_lm", "tokenizer": tokenizer, "max_length": 64} | changes))


def test_a_decoder_learns_the_right_choice_and_its_end(gpt2: Tokenizer) -> None:
    made = build_dataset(ROWS, task="causal_lm", tokenizer=gpt2, max_length=64)
    whole = gpt2.encode(["the cat is a cat", "the cat sat on the cat"])
    prompts = gpt2.encode(["the cat", "the cat sat on the"])
    assert made.form == "choice"
    for number in range(2):
        ids, prompt = [*whole[number].input_ids, gpt2.eos_id], prompts[number].input_ids
        assert made.item(number) == {"input_ids": ids, "labels": [*[-100] * len(prompt), *ids[len(prompt) :]]}


def test_all_choices_are_compared_row_after_row(gpt2: Tokenizer) -> None:
    encoded = encode_candidates(ROWS, causal(gpt2))
    assert [encoding.row for encoding in encoded.encodings] == [0, 0, 0, 1, 1]
    for place, text in enumerate(
        ["the cat sat", "the cat is a cat", "the cat ran", "the cat sat on the cat", "the cat sat on the sat"]
    ):
        assert encoded.encodings[place].input_ids == [*gpt2.encode([text])[0].input_ids, gpt2.eos_id]


def test_the_prompt_is_cut_at_its_beginning_and_no_choice_is(gpt2: Tokenizer) -> None:
    row = {"prompt": "the cat sat on the mat the cat", "choices": [" sat", " sat on"], "label": 0}
    whole = encode_candidates([row], causal(gpt2)).encodings
    longest = max(len(encoding.input_ids) for encoding in whole)
    cut = encode_candidates([row], causal(gpt2, max_length=longest - 3))
    assert [encoding.input_ids for encoding in cut.encodings] == [encoding.input_ids[3:] for encoding in whole]
    assert [encoding.truncated for encoding in cut.encodings] == [3, 3]
    learned = build_dataset([row], task="causal_lm", tokenizer=gpt2, max_length=longest - 3)
    assert learned.num_targets(0) == 2
    with pytest.raises(DataError, match=r"row 1 has 3 tokens more than \d+ with its longest choice; shorten it"):
        encode_candidates([row], causal(gpt2, max_length=longest - 3, truncation="error"))
    with pytest.raises(DataError, match="with its longest choice"):
        encode_candidates([row], causal(gpt2, max_length=4))


def test_prompts_to_write_after_know_all_right_answers(gpt2: Tokenizer) -> None:
    rows = [{**ROWS[0], "names": ["x", "y", "z"], "answers": ["y", "z"]}]
    assert encode_prompts(rows, causal(gpt2)).answers == [("y", "z")]
    assert encode_prompts(ROWS, causal(gpt2)).answers == [(" is a cat",), (" cat",)]


def test_an_encoder_reads_the_text_with_each_choice(bert: Tokenizer) -> None:
    made = build_dataset(ROWS, task="multiple_choice", tokenizer=bert, max_length=32)
    pairs = bert.encode(["the cat"] * 3, [" sat", " is a cat", " ran"], 32)
    assert made.item(0) == {
        "input_ids": [pair.input_ids for pair in pairs],
        "token_type_ids": [pair.token_type_ids for pair in pairs],
        "labels": 1,
    }
    batch = collate([made.item(0), made.item(1)], made.pad_id)
    longest = max(len(ids) for row in range(2) for ids in made.item(row)["input_ids"])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["token_type_ids"].shape == (2, 3, longest)
    assert batch["attention_mask"].sum(-1).tolist() == [
        [len(ids) for ids in made.item(0)["input_ids"]],
        [*(len(ids) for ids in made.item(1)["input_ids"]), 0],
    ]
    assert made.lengths == [sum(len(ids) for ids in made.item(row)["input_ids"]) for row in range(2)]
    assert batch["labels"].tolist() == [1, 0]


def test_the_limit_is_of_a_choice_and_not_of_a_row(bert: Tokenizer) -> None:
    longest = max(
        len(ids) for ids in build_dataset(ROWS, task="multiple_choice", tokenizer=bert, max_length=32).item(0)["input_ids"]
    )
    recipe = Recipe(task="multiple_choice", tokenizer=bert, max_length=32)
    assert len(TokenizedDataset.from_rows(ROWS, recipe, DataLimits(max_length=12))) == 2
    with pytest.raises(DataError, match=f"tokens, limit {longest - 1}"):
        TokenizedDataset.from_rows(ROWS, recipe, DataLimits(max_length=longest - 1))


def test_rows_with_the_same_choices_say_how_often_each_is_right(bert: Tokenizer, gpt2: Tokenizer) -> None:
    """The share of the commonest one is what a model reaches that always chooses the same."""
    rows = [{"prompt": "a b", "choices": [" no", " yes"], "label": label} for label in (1, 0, " yes", 1)]
    for task, tokenizer in (("causal_lm", gpt2), ("multiple_choice", bert)):
        report = build_dataset(rows, task=task, tokenizer=tokenizer, max_length=64).report
        assert report.label_counts == {"no": 1, "yes": 3}
        assert (report.num_targets, report.majority_share) == (4 if task == "multiple_choice" else report.num_targets, 0.75)
        assert "labels yes 3, no 1 (majority 75.0%)" in report.describe()
    others = [*rows, {"prompt": "a b", "choices": [" no", " perhaps"], "label": 0}]
    assert build_dataset(others, task="causal_lm", tokenizer=gpt2, max_length=64).report.label_counts == {}


def test_other_choices_are_another_data_set(bert: Tokenizer) -> None:
    first = build_dataset(ROWS, task="multiple_choice", tokenizer=bert, max_length=32)
    moved = [{**ROWS[0], "choices": [" sat is", " a cat", " ran"]}, ROWS[1]]
    assert build_dataset(moved, task="multiple_choice", tokenizer=bert, max_length=32).fingerprint != first.fingerprint
    assert build_dataset(ROWS, task="multiple_choice", tokenizer=bert, max_length=32).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt": " "}, "the text before the choices is empty"),
        ({"choices": "a, b"}, "expected a list of texts in column 'choices', found \"a, b\""),
        ({"choices": []}, r"expected a list of texts in column 'choices', found \[\]"),
        ({"choices": ["a", ""]}, "expected a list of texts in column 'choices'"),
        ({"choices": ["a", "a"]}, "expected each text of column 'choices' once"),
        ({"label": 2}, r"expected the number \(0 to 1\) or text of a choice in column 'label', found 2"),
        ({"label": "dog"}, r"expected the number \(0 to 1\) or text of a choice in column 'label', found \"dog\""),
        ({"label": None}, "the label in column 'label' is missing"),
        ({"names": ["x"], "answers": ["x"]}, "expected a name in 'names' for each of 2 choices, found 1"),
    ],
)
@pytest.mark.parametrize("task", ["causal_lm", "multiple_choice"])
def test_a_bad_row_is_refused_by_row_and_column(task: str, changes: Row, problem: str, bert: Tokenizer, gpt2: Tokenizer) -> None:
    more = {"names": ["x", "y", "z"], "answers": ["x"]} if "names" in changes else {}
    rows = [{**ROWS[0], **more}, {**ROWS[1], **changes}]
    with pytest.raises(DataError, match=f"row 2: {problem}"):
        build_dataset(rows, task=task, tokenizer=gpt2 if task == "causal_lm" else bert, max_length=32)


def test_a_label_may_be_the_choice_itself(bert: Tokenizer) -> None:
    rows = [{"question": "the cat", "options": ["sat", "ran"], "answer": "ran"}]
    assert build_dataset(rows, task="multiple_choice", tokenizer=bert, max_length=32).item(0)["labels"] == 1
