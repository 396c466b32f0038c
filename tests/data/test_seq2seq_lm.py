"""Sources and targets of an encoder-decoder, and texts with holes."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, pre_tokenizers, processors

from modelzoo.data import TokenizedDataset, Tokenizer, build_dataset, collate, count_targets, load_tokenizer
from modelzoo.data.tasks import Recipe, encode_prompts
from modelzoo.errors import DataError

WORDS = ["<pad>", "</s>", "<unk>", "a", "b", "c", "d", "e", "sum:"]
NUM_SENTINELS = 5


def folder_of(folder: Path, words: list[str], *, has_end: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer = RustTokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:3])
    if has_end:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}')
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(NUM_SENTINELS))]
    return load_tokenizer(folder_of(tmp_path_factory.mktemp("t5"), [*WORDS, *sentinels]))


def build(rows: list[dict[str, Any]], tokenizer: Tokenizer, **options: Any) -> TokenizedDataset:
    return build_dataset(rows, task="seq2seq_lm", tokenizer=tokenizer, **{"max_length": 16, "source": "my.jsonl"} | options)


@pytest.mark.parametrize("has_end", [True, False])
def test_sources_and_targets_end_once(has_end: bool, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_of(tmp_path / "t5", WORDS, has_end=has_end))
    data = build([{"source": "a b c", "target": "d e"}], tokenizer)
    item = data.item(0)
    assert item["input_ids"] == ([3, 4, 5, 1] if has_end else [3, 4, 5])
    assert item["labels"] == [6, 7, 1]
    assert item["decoder_attention_mask"] == [1, 1, 1]
    assert data.lengths == [len(item["input_ids"]) + 3]
    assert data.target_lengths == [3]
    assert (data.report.num_targets, data.num_targets(0), data.form) == (3, 3, "pair")


def test_a_batch_pads_sources_and_targets_apart(tokenizer: Tokenizer) -> None:
    data = build([{"source": "a", "target": "b c d"}, {"source": "a b c", "target": "e"}], tokenizer)
    batch = collate([data.item(0), data.item(1)], data.pad_id)
    assert batch["input_ids"].tolist() == [[3, 1, 0, 0], [3, 4, 5, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[4, 5, 6, 1], [7, 1, -100, -100]]
    assert batch["decoder_attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert count_targets(batch) == 6


@pytest.mark.parametrize(
    "names", ["source target", "prompt completion", "question answer", "document summary", "article highlights", "input output"]
)
def test_columns_are_found_by_their_usual_names(names: str, tokenizer: Tokenizer) -> None:
    source, target = names.split()
    assert build([{"id": 1, source: "a", target: "b"}], tokenizer).item(0)["labels"] == [4, 1]


def test_a_prefix_is_written_into_the_column(tokenizer: Tokenizer) -> None:
    data = build([{"doc": "a b", "sum": "c"}], tokenizer, columns={"source": "sum: {doc}", "target": "sum"})
    assert data.item(0)["input_ids"] == [8, 3, 4, 1]


@pytest.mark.parametrize("value", [["d", "e f"], {"text": ["d", "e"], "answer_start": [0, 1]}, [{"text": "d", "answer_start": 0}]])
def test_of_several_answers_the_first_is_learned_and_all_are_right(value: Any, tokenizer: Tokenizer) -> None:
    rows = [{"question": "a", "answers": value}]
    assert build(rows, tokenizer).item(0)["labels"] == [6, 1]
    prompts = encode_prompts(rows, Recipe(task="seq2seq_lm", tokenizer=tokenizer, max_length=16))
    assert prompts.answers[0][0] == "d"
    assert prompts.ids == [[3, 1]]
    assert prompts.end_ids == (1,)


def test_long_targets_lose_their_end_and_are_counted(tokenizer: Tokenizer) -> None:
    rows = [{"source": "a b c d e", "target": "a b c d e"}]
    data = build(rows, tokenizer, max_length=4, max_target_length=3)
    assert data.item(0)["input_ids"] == [3, 4, 5, 1]
    assert data.item(0)["labels"] == [3, 4, 5]
    assert (data.report.lost_targets, data.report.cut_tokens) == (3, 5)
    with pytest.raises(DataError, match="row 1: the target has 6 tokens, limit 3; shorten it, raise max_target_length"):
        build(rows, tokenizer, max_target_length=3, truncation="error")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"source": "a", "target": ""}, "my.jsonl: row 2: the target is empty"),
        ({"source": "a", "target": None}, "my.jsonl: row 2: the text in column 'target' is missing"),
        ({"source": 3, "target": "a"}, r"my.jsonl: row 2: expected a text in column 'source', found 3 \(int\)"),
    ],
)
def test_a_wrong_row_is_named(row: dict[str, Any], message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        build([{"source": "a", "target": "b"}, row], tokenizer)


def test_a_text_without_target_has_holes_that_change_from_epoch_to_epoch(tokenizer: Tokenizer) -> None:
    text = " ".join("abcde" * 8)
    data = build([{"text": text}, {"text": "a"}], tokenizer, seed=5)
    assert data.form == "holes"
    assert {data.rows[number] for number in range(len(data))} == {0}  # a single token has no place for a hole
    assert data.report.dropped_rows == 1
    ids = []
    for number in range(len(data)):
        item = data.item(number)
        assert len(item["input_ids"]) <= 16
        assert data.lengths[number] == len(item["input_ids"]) + len(item["labels"])
        assert data.target_lengths[number] == len(item["labels"]) == len(item["decoder_attention_mask"])
        hidden: dict[int, list[int]] = {}
        for token in item["labels"][:-1]:
            hidden.setdefault(token, []) if token >= len(WORDS) else hidden[next(reversed(hidden))].append(token)
        ids += [each for token in item["input_ids"][:-1] for each in hidden.get(token, [token])]
    assert ids == tokenizer.encode_parts([text])[0].input_ids
    assert data.item(0) == data.item(0)
    assert data.item(0, epoch=1) != data.item(0)
    assert build([{"text": text}], tokenizer, seed=6).item(0) != data.item(0)


def test_pieces_of_one_text_have_holes_of_their_own(tokenizer: Tokenizer) -> None:
    data = build([{"text": " ".join("a" * 300)}], tokenizer)
    places = [[token >= len(WORDS) for token in data.item(number)["input_ids"]] for number in range(8)]
    assert len({tuple(row) for row in places}) > 1


def test_holes_need_sentinels(tmp_path: Path) -> None:
    plain = load_tokenizer(folder_of(tmp_path / "t5", WORDS))
    with pytest.raises(
        DataError, match=r"my.jsonl: seq2seq_lm on plain texts hides spans behind sentinels .*the tokenizer has none"
    ):
        build([{"text": "a b c"}], plain)
