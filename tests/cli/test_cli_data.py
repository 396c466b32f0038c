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


def test_items_that_an_error_names_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    every = shown(["--rows", "360", "data.max_length=40"], capsys)["rows"]
    assert any(token["kind"] == "cut" for token in every[88]["tokens"])
    assert shown(["--items", "[88, 2]", "data.max_length=40"], capsys)["rows"] == [every[88], every[2]]
    assert shown(["--items", "359"], capsys)["rows"][0]["row"] == 360
    assert main(["data", "show", "demo", "--items", "2,360"]) == 2
    assert "--items: expected numbers of training items, 0 to 359, found 360" in capsys.readouterr().err
    assert main(["data", "show", "demo", "--items", "a"]) == 2
    assert "--items: expected numbers of training items, 0 to 359, found a" in capsys.readouterr().err


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
    assert "unknown tokens" not in out


def test_texts_that_the_tokenizer_cannot_spell_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"question": "was it ☕ good?", "passage": "a stay"}
    file.write_text("".join(json.dumps({**row, "label": label}) + "\n" for label in (True, False)))
    words = [f"data.train={file}", "data.validation=null", "evaluation.every=null"]
    assert main(["data", "show", "demo", *words]) == 0
    assert "unknown tokens of train" in capsys.readouterr().out


def test_data_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--help"]) == 0
    assert "show" in capsys.readouterr().out
    assert main(["data", "shwo"]) == 2


def test_images_are_shown_with_size_label_and_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL.Image")
    from tiny_images import image_folder, vit_folder

    vit_folder(tmp_path / "model")
    image_folder(tmp_path / "images" / "train", 3)
    image_folder(tmp_path / "images" / "val", 2)
    words = ["data", "show", "vit-images", f"model={tmp_path}/model", f"data.name={tmp_path}/images"]
    assert main([*words, "--rows", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in found["rows"]] == ["bright"] * 3 + ["dark"]
    first = found["rows"][0]
    assert (first["width"], first["height"], first["mode"]) == (24, 20, "RGB")
    assert first["file"].endswith("train/bright/0.png")
    assert first["pixels"]["shape"] == [3, 16, 16]
    assert found["rows"][0]["pixels"]["mean"] > 0 > found["rows"][3]["pixels"]["mean"]
    assert found["splits"]["train"]["labels"] == {"bright": 3, "dark": 3}
    assert main([*words, "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert "bright/0.png · 24 x 20 RGB" in out
    assert "pixel_values 3 x 16 x 16 (channels, height, width)" in out


def test_ends_of_texts_are_looked_for_in_a_bounded_number_of_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiny_language_runs import language_settings

    from modelzoo.cli import data_command
    from modelzoo.config import dump_settings

    settings = language_settings(tmp_path, "causal_lm")
    (tmp_path / "recipe.yaml").write_text(dump_settings(settings))
    monkeypatch.setattr(data_command, "MOST_ITEMS", 3)
    assert main(["data", "show", str(tmp_path / "recipe.yaml"), "--json"]) == 0
    train = json.loads(capsys.readouterr().out)["splits"]["train"]
    assert 1 <= train["looked_at"] <= 3 < train["items"]
