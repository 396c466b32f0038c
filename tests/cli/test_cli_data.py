"""modelzoo data show: tokens, loss mask and cut-off parts as the run has them, lengths and labels."""

import json
from pathlib import Path

import pytest

from modelzoo.cli import main


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["data", "show", "demo", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_first_rows_are_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    from modelzoo.config import load_settings
    from modelzoo.training.preparation import prepare

    found = shown(["--rows", "2"], capsys)
    train = prepare(load_settings("demo")).train
    assert [row["row"] for row in found["rows"]] == [1, 2]
    assert [len(row["tokens"]) for row in found["rows"]] == train.lengths[:2]
    assert found["rows"][0]["tokens"][0] == {"text": "[CLS]", "kind": "special", "target": ""}
    assert [row["label"] for row in found["rows"]] == ["true", "false"]
    lengths = sorted(train.lengths)
    assert found["splits"]["train"]["lengths"] == {
        "p50": lengths[180],
        "p90": lengths[324],
        "p99": lengths[356],
        "max": lengths[-1],
    }
    assert found["splits"]["validation"]["labels"] == {"false": 80, "true": 80}


def test_what_was_cut_off_stands_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    whole = [token["text"] for token in shown(["--rows", "1"], capsys)["rows"][0]["tokens"]]
    row = shown(["--rows", "1", "data.max_length=40"], capsys)["rows"][0]["tokens"]
    assert [token["text"] for token in row] == whole
    cut = [token["text"] for token in row if token["kind"] == "cut"]
    assert len(row) - len(cut) == 40
    assert cut == whole[39:-1]


def test_masked_tokens_show_what_they_are_to_become(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.task=masked_lm", "evaluation.metric=null", "data.columns={text: passage}", "data.truncation=longest_first"]
    tokens = shown([*words, "--rows", "8"], capsys)["rows"]
    masked = [token for row in tokens for token in row["tokens"] if token["kind"] == "masked"]
    assert any(token["text"] == "[MASK]" for token in masked)
    assert all(token["target"] for token in masked)
    assert not any(token["text"] in ("[CLS]", "[SEP]") for token in masked)


def test_without_a_terminal_marks_stand_for_colors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "demo", "--rows", "1", "data.max_length=40"]) == 0
    out = capsys.readouterr().out
    assert "40 tokens · 14 cut off · label true" in out
    assert "-ferry-" in out
    assert "\x1b" not in out
    assert "length in tokens  p50  p90  p99  max" in out
    assert "unknown tokens of train" in out


def test_data_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--help"]) == 0
    assert "show" in capsys.readouterr().out
    assert main(["data", "shwo"]) == 2
