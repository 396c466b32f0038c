"""Rows are read from each kind of file, and what cannot be read is named with file and line."""

import json
from pathlib import Path

import pytest

from modelzoo.data import read_rows
from modelzoo.errors import DataError

ROWS = [{"text": 'a, "b"\u2028c', "label": 1}, {"text": "é中🤗", "label": 0}]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "lines.json", "rows.JSONL"])
def test_json_lines_with_blank_lines_bom_and_no_last_line_feed(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, b"\xef\xbb\xbf" + jsonl(ROWS).replace("\n", "\r\n\n").strip().encode())
    assert read_rows(path) == ROWS
    assert read_rows(str(path), max_rows=1) == ROWS[:1]


@pytest.mark.parametrize("value", [ROWS, {"version": "1", "data": ROWS}])
def test_json_lists_and_lists_under_data(value: object, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", json.dumps(value, indent=1))
    assert read_rows(path) == ROWS
    assert read_rows(path, max_rows=1) == ROWS[:1]


def test_squads_nested_form_is_one_row_a_question(tmp_path: Path) -> None:
    answers = [{"text": "cat", "answer_start": 4}]
    questions = [{"id": "1", "question": "who", "answers": answers}, {"id": "2", "question": "when", "answers": []}]
    path = write(tmp_path / "squad.json", json.dumps({"data": [{"paragraphs": [{"context": "the cat", "qas": questions}]}]}))
    rows = read_rows(path)
    assert rows[0] == {"id": "1", "question": "who", "context": "the cat", "answers": answers}
    assert rows[1]["answers"] == []
    write(path, json.dumps({"data": [{"paragraphs": [{"qas": questions}]}]}))
    with pytest.raises(DataError, match=r"squad.json: expected SQuAD's form \(.*\), missing: 'context'"):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "review;verdict\ngood;1\nbad;0\n",
            r"a.csv:1: expected comma-separated cells, .* 'review;verdict', which semicol",
        ),
        ("a.csv", "review\tverdict\ngood\t1\n", r"which tabs would separate; name the file .tsv"),
        ("a.tsv", "review,verdict\ngood,1\n", r"expected tab-separated cells, .* which commas would separate; name the file .csv"),
    ],
)
def test_another_separator_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_rows(file)


def test_one_column_of_texts_may_hold_any_separator(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a text; or two\nit came; and went; at last\nno\n")
    assert [len(row) for row in read_rows(file)] == [1, 1]


def test_csv_with_quotes_and_line_breaks_in_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", 'text,label\n"a, ""b""\nsecond line",1\né中,0\n')
    assert read_rows(path) == [{"text": 'a, "b"\nsecond line', "label": "1"}, {"text": "é中", "label": "0"}]


def test_tsv_takes_quotes_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tsv", 'sentence\tlabel\nsay "hi\t1\n"quoted"\t0\n')
    assert read_rows(path) == [{"sentence": 'say "hi', "label": "1"}, {"sentence": '"quoted"', "label": "0"}]


@pytest.mark.parametrize("first", ["one long string\t0", "a text of " + "many words " * 20 + "\tyes", "1\t2", "\t"])
def test_a_table_without_header_gets_numbered_columns(first: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tsv", f"{first}\nsecond\t1\n")
    rows = read_rows(path)
    assert len(rows) == 2
    assert rows[1] == {"column1": "second", "column2": "1"}


@pytest.mark.parametrize(
    ("header", "columns"), [(",text,label", ["column1", "text", "label"]), (",0,1", ["column1", "0", "1"]), ("0,1,2", list("012"))]
)
def test_headers_that_pandas_writes(header: str, columns: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", f"{header}\n0,a,1\n1,b,0\n")
    assert read_rows(path) == [dict(zip(columns, row, strict=True)) for row in (["0", "a", "1"], ["1", "b", "0"])]


def test_parquet_with_class_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    named = [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}, {"text": "c", "label": None}]
    assert read_rows(tmp_path / "rows.parquet") == named
    assert read_rows(tmp_path / "rows.parquet", max_rows=2) == named[:2]


def test_parquet_that_datasets_did_not_write(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a"], "label": [3]}), tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == [{"text": "a", "label": 3}]


def test_a_folder_has_a_file_per_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", jsonl(ROWS))
    write(tmp_path / "dev.csv", "text,label\na,1\n")
    write(tmp_path / "README.md", "no data")
    assert read_rows(tmp_path, split="train") == ROWS
    assert read_rows(tmp_path, split="validation") == [{"text": "a", "label": "1"}]
    message = r"expected test\.\* or testing\.\* for split test, found dev.csv, train.jsonl; set data.test=FILE"
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path, split="test")
    with pytest.raises(DataError, match=r"expected a split \(train, validation or test\) beside a folder, found none"):
        read_rows(tmp_path)
    write(tmp_path / "validation.jsonl", jsonl(ROWS))
    assert len(read_rows(tmp_path, split="validation")) == 2  # the usual name comes first
    write(tmp_path / "validation.csv", "text,label\na,1\n")
    with pytest.raises(DataError, match=r"expected one file for split validation, found validation.csv, validation.jsonl"):
        read_rows(tmp_path, split="validation")


def test_a_folder_copied_from_the_hub_has_shards(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        write(tmp_path / f"train-0000{number}-of-00002.jsonl", jsonl([row]))
    assert read_rows(tmp_path, split="train") == ROWS
    assert read_rows(tmp_path, split="train", max_rows=1) == ROWS[:1]
    (tmp_path / "train-00000-of-00002.jsonl").unlink()
    message = r"expected 2 files train-\*-of-00002 for split train, found 1 \(train-00001-of-00002.jsonl\); copy the missing ones"
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path, split="train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r'a.jsonl:2: expected JSON, found: Expecting value at column 9: \{"text":'),
        ("a.jsonl", b'{"text": "a"}\n\n["b"]\n', r'a.jsonl:3: expected an object like \{"text": ...\}, found list'),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', r"a.jsonl:2: expected UTF-8, found byte 0xe9 at byte 8 of the line"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), r"a.jsonl:1: expected UTF-8, found UTF-16; save the file as UTF-8"),
        ("a.jsonl", b"", r"a.jsonl: expected at least one row, found none"),
        ("a.jsonl", b"\n \n", r"a.jsonl: expected at least one row, found none"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: expected (a row, found JSON that is nested too deep|JSON, found)"),
        ("a.json", b"", r"a.json: expected at least one row, found none"),
        ("a.json", b"[]", r"a.json: expected at least one row, found none"),
        ("a.json", b'[{"a": 1},\n {"a": }]', r"a.json:2: expected JSON, found: Expecting value at column 8"),
        ("a.json", b'[{"a": 1}, 7]', r"a.json: row 2: expected an object like .*, found int"),
        ("a.json", b'"text"', r"a.json: expected a list of objects, found str"),
        ("a.json", b'{"a": 1}\n[2]', r"a.json:2: expected an object like .*, found list"),
        ("a.csv", b"text,label\na,1\nb,c,0\n", r"a.csv:3: expected 2 cells \(text, label\), found 3; put texts with commas in"),
        ("a.tsv", b"text\tlabel\na\n", r"a.tsv:2: expected 2 cells \(text, label\), found 1; remove tabs inside texts"),
        ("a.csv", b"text,label,text\n", r"a.csv:1: expected each column once in the header, found twice: text; rename one"),
        ("a.csv", b"text,label\n", r"a.csv: expected at least one row, found none"),
        ("a.csv", b"", r"a.csv: expected at least one row, found none"),
        ("a.csv", b'text,label\n"a"b,1\n', r"a.csv:2: expected comma- or tab-separated cells, found: "),
        ("a.csv", b"text,label\n\xff,1\n", r"a.csv:2: expected UTF-8, found byte 0xff at byte 1"),
        ("a.parquet", b"PAR1 no", r"a.parquet: expected a parquet file, found: "),
        (
            "a.doc",
            b"text",
            r"a.doc: expected a name ending in .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .txt, .conll, .bio, found '?.doc",
        ),
        ("a.txt", b"\n \n", r"a.txt: expected a text, found white space"),
        ("a.txt", b"one\n\xff", r"a.txt:2: expected UTF-8, found byte 0xff at byte 1"),
        ("a", b"text", r"a: expected a name ending in .*, found 'no ending'"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message):
        read_rows(path)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", jsonl(ROWS))
    with pytest.raises(DataError, match=r"trian.jsonl: expected a data file, found nothing; did you mean .*/train.jsonl\?"):
        read_rows(tmp_path / "trian.jsonl")
    with pytest.raises(DataError, match=r"but the folder .*/nowhere does not exist"):
        read_rows(tmp_path / "nowhere" / "train.jsonl")
    with pytest.raises(DataError, match=r"the folder .* has no file of that name"):
        read_rows(tmp_path / "zzz.csv")


def test_max_rows_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected max_rows of at least 1, found 0"):
        read_rows(write(tmp_path / "a.jsonl", jsonl(ROWS)), max_rows=0)
