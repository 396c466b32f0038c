"""CoNLL's form: sentences, documents, columns, and lines that do not fit."""

from pathlib import Path

import pytest

from modelzoo.data import read_rows
from modelzoo.errors import DataError


def test_sentences_are_rows_of_words_and_last_columns(tmp_path: Path) -> None:
    file = tmp_path / "train.conll"
    file.write_text("-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n\n", encoding="utf-8")
    assert read_rows(file) == [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, {"tokens": ["Peter"], "tags": ["B-PER"]}]
    assert read_rows(tmp_path, split="train", max_rows=1) == [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}]


def test_words_with_spaces_stand_before_a_tab(tmp_path: Path) -> None:
    file = tmp_path / "dev.bio"
    file.write_text("New York\tB-LOC\r\nshines\tO", encoding="utf-8")
    assert read_rows(file) == [{"tokens": ["New York", "shines"], "tags": ["B-LOC", "O"]}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("EU B-ORG\nrejects\n", "train.conll:2: expected 2 columns, found 'rejects'"),
        ("EU\n", "train.conll:1: expected a word and its tag, found 'EU'"),
        ("EU\tB-ORG\n\t\tO\n", r"train.conll:2: expected 2 columns, found '\\t\\tO'"),
        ("\n\n", "expected at least one row"),
    ],
)
def test_a_line_that_does_not_fit_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        read_rows(tmp_path / "train.conll")
