"""Rows of a causal language model: what is read, what is learned, and what is refused, against expectations written by hand."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import byte_level_folder

from modelzoo.data import TokenizedDataset, Tokenizer, build_dataset, load_tokenizer, read_rows
from modelzoo.data.tasks import Recipe, encode_prompts
from modelzoo.errors import DataError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(byte_level_folder(tmp_path_factory.mktemp("gpt2"), model_type="gpt2"))


def build(rows: list[dict[str, Any]], tokenizer: Tokenizer, **options: Any) -> TokenizedDataset:
    return build_dataset(rows, task="causal_lm", tokenizer=tokenizer, **{"max_length": 64, "source": "my.jsonl"} | options)


def learned(data: TokenizedDataset, index: int, tokenizer: Tokenizer) -> tuple[str, list[str]]:
    """The text of an item, and its tokens that are targets."""
    item = data.item(index)
    assert len(item["labels"]) == len(item["input_ids"])
    pairs = list(zip(item["input_ids"], item["labels"], strict=True))
    assert all(label in (-100, token) for token, label in pairs)
    tokens = tokenizer.tokens([label for _, label in pairs if label != -100])
    return tokenizer.decode(item["input_ids"], skip_special_tokens=False), tokens


def test_every_token_of_a_text_is_learned_but_its_first(tokenizer: Tokenizer) -> None:
    data = build([{"text": "the cat sat"}], tokenizer)
    assert learned(data, 0, tokenizer) == ("the cat sat<|endoftext|>", ["Ġcat", "Ġsat", "<|endoftext|>"])
    assert data.num_targets(0) == data.report.num_targets == 3
    assert data.form == "text"


def test_a_long_text_is_cut_so_that_every_token_is_learned_once(tokenizer: Tokenizer) -> None:
    text = " cat sat the mat" * 20
    data = build([{"text": text}, {"text": "sat"}], tokenizer, max_length=16)
    whole = [*tokenizer.encode([text])[0].input_ids, tokenizer.eos_id]
    items = [data.item(number) for number in range(len(data)) if data.rows[number] == 0]
    assert [label for item in items for label in item["labels"] if label != -100] == whole[1:]
    assert all(after["input_ids"][0] == before["input_ids"][-1] for before, after in itertools.pairwise(items))
    assert max(data.lengths) == 16
    assert min(data.lengths) >= 2
    assert (data.report.truncated_rows, data.report.cut_tokens, data.report.rows) == (0, 0, 2)


def test_a_text_file_is_one_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "book.txt").write_bytes(b"the cat\r\n\n sat\n")
    rows = read_rows(tmp_path / "book.txt")
    assert rows == [{"text": "the cat\r\n\n sat\n"}]
    assert learned(build(rows, tokenizer), 0, tokenizer)[0] == "the cat\r\n\n sat\n<|endoftext|>"


def test_of_a_prompt_nothing_is_learned(tokenizer: Tokenizer) -> None:
    data = build([{"prompt": "the cat", "completion": " sat"}], tokenizer)
    assert learned(data, 0, tokenizer) == ("the cat sat<|endoftext|>", ["Ġsat", "<|endoftext|>"])
    assert data.form == "completion"


def test_a_prompt_has_the_tokens_that_it_has_alone(tokenizer: Tokenizer) -> None:
    # together "the c" + "at" would be one token
    data = build([{"prompt": "the c", "completion": "at"}, {"prompt": "the", "completion": " cat"}], tokenizer)
    prompts = encode_prompts(
        [{"prompt": "the c"}, {"prompt": "the"}], Recipe(task="causal_lm", tokenizer=tokenizer, max_length=64, labelled=False)
    )
    for number, ids in enumerate(prompts.ids):
        item = data.item(number)
        assert item["input_ids"][: len(ids)] == ids
        assert item["labels"][: len(ids)] == [-100] * len(ids)
    assert learned(data, 0, tokenizer)[1] == ["at", "<|endoftext|>"]
    assert learned(data, 1, tokenizer)[1] == ["Ġcat", "<|endoftext|>"]


def test_instructions_are_chats_of_one_turn(tokenizer: Tokenizer) -> None:
    rows = [{"instruction": "the cat?", "input": "", "output": "sat"}, {"instruction": "and", "input": "mat", "output": " it "}]
    data = build(rows, tokenizer, template="plain")
    assert learned(data, 0, tokenizer) == (
        "User: the cat?\n\nAssistant: sat<|endoftext|>",
        ["Ġsat", "<|endoftext|>"],
    )
    assert learned(data, 1, tokenizer)[0] == "User: and\nmat\n\nAssistant: it<|endoftext|>"
    same = build(
        [{"messages": [{"role": "user", "content": "and\nmat"}, {"role": "assistant", "content": "it"}]}],
        tokenizer,
        template="plain",
    )
    assert same.item(0) == data.item(1)


def test_alpaca_is_stanfords_form(tokenizer: Tokenizer) -> None:
    data = build([{"instruction": "Sit.", "output": "the cat"}], tokenizer, template="alpaca", max_length=256)
    text, tokens = learned(data, 0, tokenizer)
    assert text == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSit.\n\n### Response:\nthe cat<|endoftext|>"
    )
    assert "".join(tokens) == "theĠcat<|endoftext|>"


def test_all_answers_of_a_chat_are_learned(tokenizer: Tokenizer) -> None:
    turn = [{"from": "human", "value": "the"}, {"from": "gpt", "value": "cat"}]
    data = build([{"conversations": turn * 2}], tokenizer, template="plain")
    assert learned(data, 0, tokenizer)[1] == ["Ġcat", "<|endoftext|>", "Ġcat", "<|endoftext|>"]
    assert data.form == "chat"
    assert data.describe().startswith("chats, the assistant's answers learned · 1 row")


def test_columns_fill_a_text(tokenizer: Tokenizer) -> None:
    rows = [{"q": "the {cat}?", "n": 3, "a": True}]
    data = build(rows, tokenizer, columns={"prompt": "{n}. {q} A:", "completion": " {a}"})
    assert learned(data, 0, tokenizer)[0] == "3. the {cat}? A: true<|endoftext|>"
    with pytest.raises(DataError, match=r"column 'm' of data.columns.prompt not found"):
        build(rows, tokenizer, columns={"prompt": "{m}", "completion": "a"})
    with pytest.raises(DataError, match=r"expected a column's name alone in each pair of braces, found '\{q!r\}'"):
        build(rows, tokenizer, columns={"prompt": "{q!r}", "completion": "a"})
    with pytest.raises(DataError, match=r"my.jsonl: row 1: the text in column '{q}{n}' is missing"):
        build([{"q": "a", "n": None, "a": "b"}], tokenizer, columns={"prompt": "{q}{n}", "completion": "a"})


def test_what_truncation_takes_is_counted(tokenizer: Tokenizer) -> None:
    rows = [{"prompt": "the cat", "completion": " sat" * 10}] * 200
    report = build(rows, tokenizer, max_length=8).report
    assert (report.truncated_rows, report.cut_tokens, report.lost_targets, report.num_targets) == (200, 1000, 1000, 1200)
    lost = [*rows, {"prompt": "the cat" * 10, "completion": " sat"}]
    assert build(lost, tokenizer, max_length=8).report.dropped_rows == 1
    with pytest.raises(
        DataError, match=r"my.jsonl: row 201 has no target after truncation to 8 tokens, and 3 of 203 rows are like it, limit 1%"
    ):
        build([*lost, lost[-1], lost[-1]], tokenizer, max_length=8)
    with pytest.raises(DataError, match=r"my.jsonl: row 1 has 13 tokens, limit 8; 200 rows are too long; shorten the text"):
        build(rows, tokenizer, max_length=8, truncation="error")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": " "}, "my.jsonl: row 2: the completion is empty; fill or remove the row"),
        ({"prompt": None, "completion": "a"}, "my.jsonl: row 2: the text in column 'prompt' is missing"),
    ],
)
def test_a_wrong_completion_is_named(row: dict[str, Any], message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build([{"prompt": "the", "completion": "cat"}, row], tokenizer)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"my.jsonl: row 2: expected messages like .*, found \[\]; repair or remove the row"),
        ([{"role": "bott", "content": "a"}], "my.jsonl: row 2: message 1: expected a role .*; did you mean bot"),
        ([{"role": "user", "content": "a"}], "my.jsonl: row 2: expected the last message from the assistant"),
    ],
)
def test_a_wrong_chat_is_named(messages: list[Any], message: str, tokenizer: Tokenizer) -> None:
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(DataError, match=message):
        build([good, {"messages": messages}], tokenizer, template="plain")


def test_a_template_that_refuses_a_row_names_it(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, model_type="gpt2")
    (folder / "chat_template.jinja").write_text(
        "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
        "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    )
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(DataError, match=r"my.jsonl: row 2: the tokenizer's chat template: one turn only"):
        build([{"messages": turn}, {"messages": turn * 2}], load_tokenizer(folder))


def test_forms_are_not_mixed_and_a_missing_column_is_shown(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"expected roles of one form of causal_lm .*, found text, prompt together"):
        build([{"a": "x", "b": "y"}], tokenizer, columns={"text": "a", "prompt": "b"})
    with pytest.raises(DataError, match=r"my.jsonl: its columns are none that causal_lm knows\n  columns found   a, b\n"):
        build([{"a": "x", "b": "y"}], tokenizer)
    with pytest.raises(DataError, match=r"my.jsonl: column 'completion' not found"):
        build([{"a": "x", "b": "y"}], tokenizer, columns={"prompt": "a"})


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, model_type="gpt2", config={"tokenizer_class": "PreTrainedTokenizer"})
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = load_tokenizer(folder)
    tokenizer.eos_id = None
    with pytest.raises(DataError, match=r"my.jsonl: causal_lm needs a tokenizer with an end token, found none; set eos_token"):
        build([{"text": "the cat"}], tokenizer)


def test_empty_texts_are_dropped_and_counted(tokenizer: Tokenizer) -> None:
    report = build([{"text": "the"}, {"text": " \n"}], tokenizer).report
    assert (report.dropped_rows, report.items) == (1, 1)


def test_prompts_of_each_form(tokenizer: Tokenizer) -> None:
    def prompts(row: dict[str, Any], **options: Any) -> Any:
        return encode_prompts([row], Recipe(task="causal_lm", tokenizer=tokenizer, max_length=64, **options))

    found = prompts({"prompt": "the cat", "completion": " sat"})
    assert ([tokenizer.decode(ids) for ids in found.ids], found.answers) == (["the cat"], [(" sat",)])
    turn = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "cat"}]
    found = prompts({"messages": turn}, template="plain")
    assert ([tokenizer.decode(ids) for ids in found.ids], found.answers) == (["User: the\n\nAssistant:"], [("cat",)])
    assert prompts({"messages": turn[:1]}, template="plain", labelled=False).ids == found.ids
    assert prompts({"text": "the cat"}).answers == []
    with pytest.raises(DataError, match="rows without targets are prompts to a causal_lm; use encode_prompts"):
        build([{"prompt": "a"}], tokenizer, labelled=False)


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "the cat"}, {"text": "<s>the cat"}],
        [{"prompt": "the", "completion": " cat"}, {"prompt": "<s>the", "completion": " cat"}],
    ],
    ids=["text", "completion"],
)
def test_a_begin_that_the_tokenizer_adds_is_not_written_as_well(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    roberta = load_tokenizer(byte_level_folder(tmp_path / "roberta"))
    assert build(rows[:1], roberta).item(0)["input_ids"][:2].count(roberta.bos_id) == 1
    found = r"my.jsonl: row 2: begins with <s> twice; the tokenizer adds one; remove <s> from the beginning of the text"
    with pytest.raises(DataError, match=found):
        build(rows, roberta)


def test_a_begin_in_a_text_is_kept_where_the_tokenizer_adds_none(tokenizer: Tokenizer) -> None:
    item = build([{"text": "<|endoftext|><|endoftext|>the cat"}], tokenizer).item(0)
    assert item["input_ids"][:2] == [tokenizer.bos_id] * 2
