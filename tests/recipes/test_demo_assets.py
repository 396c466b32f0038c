"""The demo's data and model are what recipes/demo/README.md says."""

import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from modelzoo.recipes.demo import make_data
from modelzoo.recipes.demo.corpus import draw_text

DEMO = Path(make_data.__file__).parent
DATA, MODEL = DEMO / "data", DEMO / "model"
Row = dict[str, object]


def rows_of(split: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def words(row: Row, column: str) -> list[str]:
    return re.findall(r"[a-z]+", str(row[column]).lower())


@pytest.fixture(scope="module")
def train() -> list[Row]:
    return rows_of("train")


@pytest.fixture(scope="module")
def validation() -> list[Row]:
    return rows_of("validation")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_have_boolqs_form(split: str) -> None:
    rows = rows_of(split)
    assert 100 <= len(rows) <= 400
    assert [row["idx"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert list(row) == ["question", "passage", "label", "idx"]
        assert isinstance(row["label"], bool)
        assert str(row["question"]).endswith("?")
        assert 5 <= len(words(row, "passage")) <= 80


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_question_has_both_answers(split: str) -> None:
    labels = defaultdict(list)
    for row in rows_of(split):
        labels[row["question"]].append(row["label"])
    assert all(sorted(each) == [False, True] for each in labels.values())


@pytest.mark.parametrize("column", ["question", "passage"])
def test_splits_share_nothing(train: list[Row], validation: list[Row], column: str) -> None:
    assert not {row[column] for row in train} & {row[column] for row in validation}
    assert len({row["passage"] for row in train + validation}) == len(train) + len(validation)


def bayes_accuracy(train: list[Row], validation: list[Row], columns: list[str]) -> float:
    """Validation accuracy of naive Bayes on which words occur in the columns."""

    def seen(row: Row) -> set[str]:
        return {f"{column} {word}" for column in columns for word in words(row, column)}

    counts = {label: Counter(word for row in train if row["label"] is label for word in seen(row)) for label in (True, False)}
    correct = 0.0
    for row in validation:
        score = sum(math.log((counts[True][word] + 1) / (counts[False][word] + 1)) for word in seen(row))
        correct += 0.5 if score == 0 else (score > 0) is row["label"]
    return correct / len(validation)


def test_question_alone_tells_nothing(train: list[Row], validation: list[Row]) -> None:
    assert bayes_accuracy(train, validation, ["question"]) == 0.5


@pytest.mark.parametrize("columns", [["passage"], ["question", "passage"]])
def test_bags_of_words_stay_near_chance(train: list[Row], validation: list[Row], columns: list[str]) -> None:
    assert 0.4 <= bayes_accuracy(train, validation, columns) <= 0.6


def test_shared_words_stay_near_chance(train: list[Row], validation: list[Row]) -> None:
    rows = train + validation
    shared = [len(set(words(row, "question")) & set(words(row, "passage"))) / len(set(words(row, "question"))) for row in rows]
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        accuracy = sum((share >= threshold) is row["label"] for share, row in zip(shared, rows, strict=True)) / len(rows)
        assert 0.4 <= accuracy <= 0.6


def test_make_data_gives_the_committed_bytes(tmp_path: Path) -> None:
    make_data.write(tmp_path)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_corpus_asks_nothing_that_the_rows_ask(train: list[Row], validation: list[Row]) -> None:
    *_, taken = make_data.compose()
    rng = random.Random(0)
    texts = [draw_text(taken, rng) for _ in range(500)]
    for row in train + validation:
        assert not any(str(row["question"]) in text.first_part for text in texts)
    assert not {row["passage"] for row in train + validation} & {text.passage for text in texts}


def test_tokenizer_files_agree() -> None:
    from transformers import AutoTokenizer, BertTokenizer

    vocabulary = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert (MODEL / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] == sorted(vocabulary, key=vocabulary.get)
    assert len(vocabulary) == json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    row = rows_of("validation")[0]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    encoded = tokenizer(row["question"], row["passage"])
    assert tokenizer.model_max_length == 128
    assert tokenizer.unk_token_id not in encoded["input_ids"]
    from_words = BertTokenizer(vocab=str(MODEL / "vocab.txt"))
    assert from_words(row["question"], row["passage"])["input_ids"] == encoded["input_ids"]


def test_model_loads_strictly_and_knows_the_texts(validation: list[Row]) -> None:
    from transformers import AutoTokenizer, BertForMaskedLM

    model, report = BertForMaskedLM.from_pretrained(MODEL, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    batch = tokenizer([str(row["passage"]) for row in validation], padding=True, return_tensors="pt")
    generator = torch.Generator().manual_seed(0)
    is_word = batch["input_ids"] > tokenizer.mask_token_id
    hidden = is_word & (torch.rand(batch["input_ids"].shape, generator=generator) < 0.15)
    labels = batch["input_ids"].masked_fill(~hidden, -100)
    inputs = {**batch, "input_ids": batch["input_ids"].masked_fill(hidden, tokenizer.mask_token_id)}
    with torch.no_grad():
        loss = model.eval()(**inputs, labels=labels).loss.item()
    assert loss < 0.5 * math.log(model.config.vocab_size)


def test_model_has_no_classifier() -> None:
    from safetensors import safe_open

    assert json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["architectures"] == ["BertForMaskedLM"]
    with safe_open(MODEL / "model.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if "pooler" in name or "classifier" in name]  # noqa: SIM118 (not a dict)


def test_demo_is_small() -> None:
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file() and "__pycache__" not in path.parts) < 8_000_000
