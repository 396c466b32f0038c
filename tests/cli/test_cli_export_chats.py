"""A model that learned chats says how it is asked, and its folder gives transformers the tokens that it learned."""

import json
import re
from pathlib import Path

import pytest
import transformers
from tiny_language_runs import chat_rows, language_settings

from modelzoo.cli import main
from modelzoo.training import SilentProgress, train

ASKED = "User: Hello\n\nAssistant:"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    settings = language_settings(folder, "causal_lm", chat_rows, data__template="plain", train__max_steps=1)
    return train(settings, progress=SilentProgress()).folder


def test_the_card_asks_in_the_template_and_its_code_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = (run / "final" / "README.md").read_text()
    assert json.loads(re.search(r"```json\n(.*)\n```", card)[1]) == ASKED
    assert 'modelzoo generate PATH --text "..." --chat' in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace('"PATH"', repr(str(run / "final")))
    capsys.readouterr()
    exec(code, {})
    assert capsys.readouterr().out.startswith(ASKED)


def test_export_says_the_prompt_and_replays_rows(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "out"), "--verify"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"(?m)^asks\s+{re.escape(json.dumps(ASKED))}$", out), out
    told = re.search(r"5 chats of train.jsonl: transformers' tokenizer and template give the same (\d+) tokens", out)
    assert told is not None, out
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = [json.loads(line)["messages"] for line in (run.parents[1] / "train.jsonl").read_text().splitlines()[:5]]
    assert int(told[1]) == sum(len(tokenizer.apply_chat_template(row, return_dict=True)["input_ids"]) for row in rows)
    assert told[0] in (tmp_path / "out" / "README.md").read_text()


def test_another_template_is_found_by_the_replay(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = run / "final" / "chat_template.jinja"
    before = template.read_text()
    template.write_text(before.replace("capitalize", "upper"))
    try:
        assert main(["export", str(run), str(tmp_path / "out"), "--verify"]) == 2
    finally:
        template.write_text(before)
    error = capsys.readouterr().err
    assert "train.jsonl: row 1: expected the tokens that were learned" in error
    assert '"User' in error
    assert '"USER' in error


def test_rows_that_are_gone_are_not_replayed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run.parents[1] / "train.jsonl"
    rows.rename(rows.with_suffix(".away"))
    try:
        assert main(["export", str(run), str(tmp_path / "out"), "--verify"]) == 0
    finally:
        rows.with_suffix(".away").rename(rows)
    assert f"replayed    nothing: {rows} is not here" in capsys.readouterr().out
