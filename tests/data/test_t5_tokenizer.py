"""T5's real tokenizer: sentinels, added tokens and punctuation beside them get transformers' ids, and texts come back."""

import json
import shutil
from pathlib import Path

import pytest
import transformers

from modelzoo.data import load_tokenizer

TEXTS = [
    "<extra_id_0>. Hello",
    "Hello<extra_id_0>, world <extra_id_99>!",
    "translate English to German: That is good.",
    "  two  spaces and a tab\t.",
    "asdfgword",
    "word asdfg word",
    "",
]


@pytest.fixture
def folder(testdata: Path, tmp_path: Path) -> Path:
    return shutil.copytree(testdata / "tokenizers" / "t5-base", tmp_path / "t5")


@pytest.mark.parametrize("text", TEXTS)
def test_sentinels_and_their_neighbours_have_transformers_ids(folder: Path, text: str) -> None:
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.encode([text])[0].input_ids == theirs(text).input_ids
    assert ours.vocab_size == len(theirs)


def test_a_token_that_was_added_is_one_id_and_its_text_comes_back(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens(["asdfg"])
    theirs.add_tokens(["<other>"], special_tokens=True)
    theirs.save_pretrained(tmp_path / "more")
    (tmp_path / "more" / "config.json").write_text(json.dumps({"model_type": "t5"}))
    ours = load_tokenizer(tmp_path / "more")
    for text in ("asdfgword", "word asdfg word", "<other>. Hello", "a<extra_id_0>b"):
        ids = ours.encode([text])[0].input_ids
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) or ours.decode(ids) == theirs.decode(ids)
    assert theirs.convert_tokens_to_ids("asdfg") in ours.encode(["word asdfg word"])[0].input_ids
