"""A token store: the same samples as its texts in memory, for every tokenizer and task, and builds that go on after a kill."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizers import NASTY_TEXTS, bert_folder, byte_level_folder

from modelzoo.data import DataLimits, TokenizedDataset, Tokenizer, load_tokenizer
from modelzoo.data.store import IndexedTokens, StoredDataset, build_store
from modelzoo.data.store import build as building
from modelzoo.data.tasks import Recipe
from modelzoo.errors import DataError

TEXTS = [text for text in NASTY_TEXTS if text.strip()] + ["the cat sat on the mat " * count for count in (1, 2, 7, 30)]


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def tokenizers(tmp_path: Path) -> dict[str, Tokenizer]:
    gpt2 = byte_level_folder(
        tmp_path / "gpt2", model_type="gpt2", config={"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    )
    return {
        "bert": load_tokenizer(bert_folder(tmp_path / "bert")),
        "roberta": load_tokenizer(byte_level_folder(tmp_path / "roberta")),
        "gpt2": load_tokenizer(gpt2),
    }


CASES = [("gpt2", "causal_lm"), ("roberta", "causal_lm"), ("bert", "masked_lm"), ("roberta", "masked_lm")]


@pytest.mark.parametrize("max_length", [4, 7, 64])
@pytest.mark.parametrize(("name", "task"), CASES)
def test_samples_are_those_of_the_texts_in_memory(name: str, task: str, max_length: int, tmp_path: Path) -> None:
    tokenizer = tokenizers(tmp_path)[name]
    rows = [{"text": text} for text in TEXTS]
    build_store([jsonl(tmp_path / "texts.jsonl", TEXTS)], tokenizer, tmp_path / "store")
    recipe = Recipe(task=task, tokenizer=tokenizer, max_length=max_length, seed=3)
    memory = TokenizedDataset.from_rows(rows, recipe, DataLimits())
    stored = StoredDataset(tmp_path / "store", recipe, DataLimits())
    assert stored.lengths == memory.lengths
    # a document without a token has no number in a store
    assert stored.rows == np.unique(memory.rows, return_inverse=True)[1].tolist()
    for epoch in (0, 1):
        for index in range(len(memory)):
            assert stored.item(index, epoch=epoch) == memory.item(index, epoch=epoch), index
    assert (stored.report.items, stored.report.tokens, stored.report.longest) == (
        memory.report.items,
        memory.report.tokens,
        memory.report.longest,
    )
    if task == "causal_lm":
        assert stored.report.num_targets == memory.report.num_targets
    assert (stored.form, stored.pad_id, stored.describe().split(" · ")[0]) == (
        memory.form,
        memory.pad_id,
        memory.describe().split(" · ")[0],
    )


def test_a_build_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizers(tmp_path)["gpt2"]
    monkeypatch.setattr(building, "PORTION", 3)
    files = [jsonl(tmp_path / "a.jsonl", TEXTS), jsonl(tmp_path / "b.jsonl", TEXTS[::-1])]
    whole = build_store(files, tokenizer, tmp_path / "whole").manifest
    for stop_after in (1, 2, 5, 8):

        class Killed(Exception):
            pass

        calls = 0

        def stop(_: object, limit: int = stop_after) -> None:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise Killed

        target = tmp_path / f"store{stop_after}"
        with pytest.raises(Killed):
            build_store(files, tokenizer, target, progress=stop)
        assert not target.exists()
        with (target.with_name(target.name + ".partial") / "tokens.bin").open("ab") as file:
            file.write(b"written, but in no state")
        report = build_store(files, tokenizer, target)
        assert report.resumed_at > 0
        assert report.manifest == whole
        for name in ("tokens.bin", "tokens.idx", "store.json"):
            assert (target / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert sorted(path.name for path in target.iterdir()) == ["store.json", "tokens.bin", "tokens.idx"]


def test_nothing_is_overwritten_or_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tokenizers(tmp_path)
    monkeypatch.setattr(building, "PORTION", 2)
    file = jsonl(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="expected a new folder"):
        build_store([file], found["gpt2"], tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []
    with pytest.raises(DataError, match=r"absent\.jsonl: expected a file"):
        build_store([file, tmp_path / "absent.jsonl"], found["gpt2"], tmp_path / "store")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store([file], found["gpt2"], tmp_path / "store", progress=stop)
    with pytest.raises(DataError, match="unfinished build of other files, another tokenizer"):
        build_store([file], found["bert"], tmp_path / "store")
    build_store([file], found["gpt2"], tmp_path / "store")
    recipe = Recipe(task="causal_lm", tokenizer=found["roberta"], max_length=8, source="train")
    with pytest.raises(DataError, match="train: the store's ids were made by another tokenizer"):
        StoredDataset(tmp_path / "store", recipe, DataLimits())
    with pytest.raises(DataError, match="which classification does not learn from"):
        StoredDataset(tmp_path / "store", Recipe(task="classification", tokenizer=found["gpt2"], max_length=8), DataLimits())
    with pytest.raises(DataError, match="limit 10 rows of the model's embedding"):
        StoredDataset(
            tmp_path / "store", Recipe(task="causal_lm", tokenizer=found["gpt2"], max_length=8), DataLimits(vocab_size=10)
        )


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tokenizer = tokenizers(tmp_path)["gpt2"]
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "the cat"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.jsonl from row 1: expected the texts in column 'text', found body"):
        build_store([file], tokenizer, tmp_path / "store")
    file.write_text('{"text": "the cat"}\n{"text": 3}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.jsonl from row 1: row 2: expected a text"):
        build_store([file], tokenizer, tmp_path / "other")
    file.write_text('{"text": "the cat"}\n{"text": "<s>the cat"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"from row 1: row 2: begins with <s>; a run adds one"):
        build_store([file], tokenizers(tmp_path)["roberta"], tmp_path / "twice")
    file.write_text('{"text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match="found 1 documents without a token"):
        build_store([file], tokenizer, tmp_path / "third")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    tokenizer = tokenizers(tmp_path)["gpt2"]
    folder = build_store([jsonl(tmp_path / "a.jsonl", TEXTS)], tokenizer, tmp_path / "store").folder
    index, ids = (folder / "tokens.idx").read_bytes(), (folder / "tokens.bin").read_bytes()
    tokens = IndexedTokens(folder / "tokens.bin")
    assert sum(map(len, tokens)) == len(ids) // 2
    for damaged, message in (
        (index[:-1], "is cut off"),
        (b"X" + index[1:], "expected an index that begins with"),
        (index[:9] + b"\x07" + index[10:], "expected version 1"),
        (index[:34] + b"\x7f" + index[35:], "expected to begin at byte"),
    ):
        (folder / "tokens.idx").write_bytes(damaged)
        with pytest.raises(DataError, match=message):
            IndexedTokens(folder / "tokens.bin")
    (folder / "tokens.idx").write_bytes(index)
    (folder / "tokens.bin").write_bytes(ids[:-2])
    with pytest.raises(DataError, match=r"as tokens\.idx says, found"):
        IndexedTokens(folder / "tokens.bin")
    (folder / "store.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"store\.json: expected a 'modelzoo token store 2' with form, tokenizer, .*; found ''"):
        StoredDataset(folder, Recipe(task="causal_lm", tokenizer=tokenizer, max_length=8), DataLimits())


def test_the_index_is_the_one_that_megatron_writes(tmp_path: Path) -> None:
    """Byte by byte, from the description of the format: two documents of 2 and 3 tokens, ids of two bytes."""
    building.write_index(tmp_path / "tokens.idx", np.array([2, 3], dtype="<i4"), np.dtype("<u2"))
    expected = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    expected += b"".join(number.to_bytes(4, "little") for number in (2, 3))
    expected += b"".join(number.to_bytes(8, "little") for number in (0, 4, 0, 1, 2))
    assert (tmp_path / "tokens.idx").read_bytes() == expected
