"""eval and predict hold rows against what the model was trained on: pairs or single texts, its labels, its columns."""

import json
from pathlib import Path

import pytest

from modelzoo.cli import main

SHORT = ["train.max_steps=2", "checkpoint.every=2", "evaluation.every=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two steps: `pairs` on questions with passages, `single` on passages alone."""
    folder = tmp_path_factory.mktemp("runs")
    for name, columns in (("pairs", "{text_a: question, text_b: passage}"), ("single", "{text_a: passage}")):
        more = [f"output.folder={folder}", f"output.name={name}", f"data.columns={columns}", "data.truncation=longest_first"]
        assert main(["train", "demo", *SHORT, *more]) == 0
    return folder


@pytest.mark.parametrize("of", ["pairs-001", "pairs-001/final"])
def test_one_text_for_a_model_of_pairs_is_refused(of: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(runs / of), "--text", "was it open"]) == 2
    message = capsys.readouterr().err
    assert "the model was trained on pairs of texts (question and passage), but there is one text a row" in message
    assert "--pair TEXT beside each --text" in message
    assert main(["predict", str(runs / of), "--text", "was it open", "--pair", "It was."]) == 0


def test_a_pair_for_a_model_of_single_texts_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(runs / "single-001"), "--text", "a", "--pair", "b"]) == 2
    assert "the model was trained on single texts (passage), but there are two a row" in capsys.readouterr().err
    file = tmp_path / "rows.csv"
    file.write_text("premise,hypothesis,label\na,b,true\n")
    assert main(["eval", str(runs / "single-001"), f"data={file}", "columns={label: label}"]) == 2
    assert "choose one with columns.text_a=COLUMN" in capsys.readouterr().err
    assert main(["predict", str(runs / "single-001"), "--text", "a"]) == 0


def test_eval_says_which_rows_it_read_and_how_many(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(runs / "pairs-001"), "max_rows=12"]) == 0
    assert capsys.readouterr().out.startswith("rows     validation.jsonl, the validation rows of the run: 12 rows · ")
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "a", "passage": "b", "label": True}) + "\n")
    assert main(["eval", str(runs / "pairs-001"), f"data={file}"]) == 0
    assert capsys.readouterr().out.startswith("rows     mine.jsonl: 1 row · ")
    assert main(["eval", str(runs / "pairs-001"), f"data={file}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"]["name"], found["rows"]["rows"], found["rows"]["truncated_rows"]) == ("mine.jsonl", 1, 0)
    assert found["rows"]["label_counts"]["true"] == 1
    assert 0 <= found["accuracy"] <= 1
    assert main(["eval", str(runs / "pairs-001"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["name"] == "validation.jsonl, the validation rows of the run"


def test_what_eval_lacks_is_said_in_the_words_that_it_takes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("q,p,gold\nis red,the red cat,perhaps\n")
    assert main(["eval", str(runs / "pairs-001" / "final"), f"data={file}"]) == 2
    message = capsys.readouterr().err
    assert "add to the command:\n      columns.text_a=q" in message
    assert "recipe" not in message
    named = ["columns.text_a=q", "columns.text_b=p", "columns.label=gold"]
    assert main(["eval", str(runs / "pairs-001" / "final"), f"data={file}", *named]) == 2
    message = capsys.readouterr().err
    assert 'row 1: label "perhaps" is not one of 2 known labels (false, true)' in message
    assert "the model knows no other labels" in message
    assert "data.label_names" not in message


def test_what_is_next_names_the_second_text_of_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "demo", *SHORT, f"output.folder={tmp_path}", "evaluation.metric=f1"]) == 0
    out = capsys.readouterr().out
    assert f"modelzoo predict {tmp_path}/demo-001 --text TEXT --pair TEXT" in out
    assert "always the commonest label: accuracy 0.5000" in out  # which an f1 is not to be held against


def test_what_is_next_of_a_run_on_a_published_form_is_rows_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "demo", *SHORT, f"output.folder={tmp_path}", "data.form=superglue/boolq"]) == 0
    assert f"modelzoo predict {tmp_path}/demo-001 --file FILE\n" in capsys.readouterr().out
    assert main(["predict", f"{tmp_path}/demo-001", "--text", "is it open", "--pair", "It is."]) == 2
    message = capsys.readouterr().err
    assert (
        "expected a text in column 'passage', found nothing; the run read rows of superglue/boolq: give a file of them" in message
    )
    assert "data.form" not in message
