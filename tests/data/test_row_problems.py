"""Rows with several kinds of problems are described in one error, each kind with its rows and what to do."""

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import bert_folder

from modelzoo.data import build_dataset, load_tokenizer, read_rows
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.errors import DataError


def refusal(tmp_path: Path, task: str, rows: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = load_tokenizer(bert_folder(tmp_path / "bert"))
    with pytest.raises(DataError) as caught:
        build_dataset(rows, task=task, tokenizer=tokenizer, max_length=32, source="my.jsonl", **options)
    return str(caught.value)


def test_every_kind_of_bad_row_is_listed_with_its_count(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"premise": "a cat", "hypothesis": "a dog", "label": "yes"} for _ in range(40)]
    rows[1]["premise"] = None
    rows[2]["hypothesis"] = 7
    rows[3] |= {"premise": " ", "hypothesis": ""}
    for row in rows[20:35]:
        row["label"] = None
    lines = refusal(tmp_path, "classification", rows).splitlines()
    assert lines[:7] == [
        "my.jsonl: 18 problems of 2 kinds in its rows",
        "  3 rows: fill or remove the row",
        "    row 2: the text in column 'premise' is missing",
        "    row 3: expected a text in column 'hypothesis', found 7 (int)",
        "    row 4: the text is empty",
        "  15 rows: give each row a label",
        "    row 21: the label is missing",
    ]
    assert lines[-1] == "    ... and 5 more"
    assert len(lines) == 17


def test_tags_and_words_are_both_looked_at(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tokens": ["a", "cat"], "tags": ["O", "O"]},
        {"tokens": ["a"], "tags": ["O", "O"]},
        {"tokens": "a cat", "tags": ["O"]},
        {"tokens": ["a"], "tags": ["X"]},
    ]
    text = refusal(tmp_path, "token_classification", rows, label_names=["O"])
    assert "row 2: 1 words in 'tokens', but 'tags' has 2 tags" in text
    assert "row 3: expected a list of words" in text
    assert 'row 4: label "X" is not one of 1 known labels' in text


def test_one_kind_reads_as_before_and_what_is_no_row_is_added() -> None:
    checks = RowChecks("t.csv")
    for row in (1, 2):
        with checks:
            raise problem_rows("t.csv", [f"row {row}: the text is missing"], "fill it")
    with pytest.raises(DataError, match=r"(?s)^t.csv: 2 rows have a problem; fill it\n  row 1: .*\n  row 2: the text is missing$"):
        checks.finish()
    with checks:
        raise DataError("t.csv: expected labels of one kind")
    with pytest.raises(DataError, match=r"(?s)2 rows have a problem.*\nt.csv: expected labels of one kind$"):
        checks.finish()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "text,label\na,1\nb,c,2\nd,3\n,,,\n", "line 3: expected 2 cells.*found 3; .*line 5: "),
        (
            "t.jsonl",
            '{"a": 1}\n{"a"\n[1]\n{"a": 2}\n',
            "line 2: expected JSON.*line 3: expected an object",
        ),
    ],
)
def test_all_lines_that_cannot_be_read_are_listed(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=f"(?s): 2 lines cannot be read; .*{said}"):
        read_rows(file)
    assert len(read_rows(file, max_rows=1)) == 1
