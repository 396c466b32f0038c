"""`modelzoo data build`: a store that a recipe can name, and what it refuses."""

import json
from pathlib import Path

import pytest

from modelzoo import recipes
from modelzoo.cli import main


def test_a_store_is_built_shown_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["the cat sat", "the dog ran away from the cat", ""]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    words = [
        "data",
        "build",
        str(Path(recipes.__file__).parent / "demo" / "model"),
        str(tmp_path / "texts.jsonl"),
        "--output",
        str(tmp_path / "tokens"),
    ]
    assert main(words) == 2
    assert "expected the texts in column 'text', found body; name it" in capsys.readouterr().err
    assert main([*words, "--column", "body"]) == 0
    said = capsys.readouterr().out
    assert "documents  2 (1 without a token left out)" in said
    assert f"use        data.train={tmp_path / 'tokens'}" in said
    before = (tmp_path / "tokens" / "tokens.bin").read_bytes()
    assert main([*words, "--column", "body"]) == 2
    assert "expected a new folder, but it is a finished store" in capsys.readouterr().err
    assert (tmp_path / "tokens" / "tokens.bin").read_bytes() == before
