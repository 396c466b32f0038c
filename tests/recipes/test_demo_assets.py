"""The demo's data and model are what recipes/demo/README.md says."""

import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from modelzoo.data import load_tokenizer
from modelzoo.recipes.demo import make_data, make_model
from modelzoo.recipes.demo.world import NUM_TRAINING_SENTENCES, SENTENCES

DEMO = Path(make_data.__file__).parent
DATA, MODEL = DEMO / "data", DEMO / "model"
Row = dict[str, object]


def rows_of(split: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def words(row: Row, columns: tuple[str, ...]) -> set[str]:
    return {word for column in columns for word in re.findall(r"[a-z]+", str(row[column]).lower())}


@pytest.mark.parametrize(("split", "count"), [("train", 360), ("validation", 160)])
def test_rows_have_boolqs_form_and_are_balanced(split: str, count: int) -> None:
    rows = rows_of(split)
    assert [row["idx"] for row in rows] == list(range(count))
    assert all(list(row) == ["question", "passage", "label", "idx"] for row in rows)
    assert sum(row["label"] is True for row in rows) == sum(row["label"] is False for row in rows) == count // 2
    assert all(str(row["question"]).endswith("?") for row in rows)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_question_alone_says_nothing(split: str) -> None:
    labels = defaultdict(list)
    for row in rows_of(split):
        labels[row["question"]].append(row["label"])
    assert all(sum(each) * 2 == len(each) for each in labels.values())


def test_what_decides_a_validation_row_stands_in_no_training_row() -> None:
    for moods in SENTENCES.values():
        for pool in moods.values():
            assert len(set(pool)) == len(pool) > NUM_TRAINING_SENTENCES
    heads = {re.sub(r"\{.*", "", pool[i]).strip() for m in SENTENCES.values() for pool in m.values() for i in range(7, len(pool))}
    told = " ".join(str(row["passage"]).lower() for row in rows_of("train"))
    assert [head for head in heads if len(head.split()) > 3 and f"{head.lower()}." in told] == []
    assert not {row["passage"] for row in rows_of("train")} & {row["passage"] for row in rows_of("validation")}


@pytest.mark.parametrize("columns", [("question",), ("passage",), ("question", "passage")])
def test_single_words_of_the_training_rows_do_not_decide_the_validation_rows(columns: tuple[str, ...]) -> None:
    counts: dict[object, Counter[str]] = {True: Counter(), False: Counter()}
    for row in rows_of("train"):
        counts[row["label"]].update(words(row, columns))
    right = 0
    for row in rows_of("validation"):
        score = sum(math.log((counts[True][word] + 1) / (counts[False][word] + 1)) for word in words(row, columns))
        right += (score > 0) == row["label"]
    assert right / 160 < 0.68  # the figures are in the README


def test_the_files_are_what_the_script_makes() -> None:
    for split in ("train", "validation"):
        assert rows_of(split) == list(make_data.compose(split))  # type: ignore[arg-type]  # one of the two


def test_pretraining_texts_hold_no_question() -> None:
    rng = random.Random(3)
    assert not any("?" in sentence for _ in range(300) for sentence in make_model.story(rng))


def test_the_tokenizers_files_agree() -> None:
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    assert (MODEL / "vocab.txt").read_text().splitlines() == sorted(vocabulary, key=vocabulary.get)
    assert len(vocabulary) == json.loads((MODEL / "config.json").read_text())["vocab_size"]


def test_the_tokenizer_spells_every_row_and_any_plain_text() -> None:
    tokenizer = load_tokenizer(MODEL)
    texts = [str(row[column]) for split in ("train", "validation") for row in rows_of(split) for column in ("question", "passage")]
    plain = 'Isn\'t Room 2047 "quiet" (at 10:30); or is it - well - loud?!'
    assert not [item for item in tokenizer.encode([*texts, plain]) if "[UNK]" in tokenizer.tokens(item.input_ids)]


def test_the_model_loads_in_transformers_and_knows_its_language() -> None:
    from transformers import AutoTokenizer, BertForMaskedLM

    model, info = BertForMaskedLM.from_pretrained(MODEL, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rng = random.Random(5)
    texts = [" ".join(make_model.story(rng)) for _ in range(40)]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    hidden = drawn & (batch["input_ids"] >= 5)
    batch["labels"] = labels.masked_fill(~hidden, -100)
    batch["input_ids"] = batch["input_ids"].masked_fill(hidden, tokenizer.mask_token_id)
    with torch.no_grad():
        loss = model.eval()(**batch).loss
    assert loss < 0.25 * math.log(len(tokenizer))


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in DEMO.rglob("*") if file.is_file() and "__pycache__" not in file.parts) < 4 * 2**20
