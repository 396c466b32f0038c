"""modelzoo check: every problem at once, each with what to do, exit code 2; nothing is written and no weight is read."""

import json
from pathlib import Path

import pytest

from modelzoo.cli import main


def found(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    code = main(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def rows(path: Path, *some: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return str(path)


def test_a_recipe_that_can_run_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, findings = found(["demo"], capsys)
    assert code == 0
    names = [finding["name"] for finding in findings if finding["level"] == "ok"]
    assert [name for name in names if name in ("settings", "output", "model", "train", "validation", "tokenizer", "plan")] == [
        "settings",
        "output",
        "model",
        "train",
        "validation",
        "tokenizer",
        "plan",
    ]
    assert not [finding for finding in findings if finding["level"] == "problem"]
    assert list(tmp_path.iterdir()) == []
    assert main(["check", "demo"]) == 0
    assert "start it: modelzoo train demo" in capsys.readouterr().out


def test_problems_of_all_files_are_listed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = rows(tmp_path / "train.jsonl", {"x1": "a", "x2": "b", "label": True})
    validation = rows(tmp_path / "validation.jsonl", {"question": "a", "passage": "b", "label": None})
    (tmp_path / "runs").write_text("a file")
    code, findings = found(
        ["demo", f"data.train={train}", f"data.validation={validation}", f"output.folder={tmp_path}/runs"], capsys
    )
    problems = [finding["value"] for finding in findings if finding["level"] == "problem"]
    assert code == 2
    assert [text.split(":")[0] for text in problems] == [f"{tmp_path}/runs is a file", "train.jsonl", "validation.jsonl"]
    assert "x1" in problems[1]
    assert "row 1" in problems[2]


def test_labels_of_validation_are_held_against_those_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validation = rows(tmp_path / "v.jsonl", {"question": "a", "passage": "b", "label": "maybe"})
    code, findings = found(["demo", f"data.validation={validation}"], capsys)
    assert code == 2
    assert 'label "maybe" is not one of 2 known labels (false, true)' in str(findings)


def test_truncation_and_rows_that_were_trained_on_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    from modelzoo.config import load_settings

    train = load_settings("demo").data.train
    code, findings = found(["demo", "data.max_length=48", f"data.validation={train}"], capsys)
    notes = [finding["value"] for finding in findings if finding["level"] == "note"]
    assert code == 0
    assert any("were cut to data.max_length=48 tokens" in note for note in notes)
    assert "validation: the same rows as train" in notes


def test_a_limit_of_the_model_is_what_rows_are_said_to_be_cut_to() -> None:
    from modelzoo.report.findings import data_findings

    report = {"rows": 15, "truncated_rows": 15, "longest": 512}
    (note, *_) = data_findings({"train": {"report": report}}, max_length=1024)
    assert note.text == "train: 15 of 15 rows (100.0%) were cut, to 512 tokens at most"


def test_a_run_that_does_not_fit_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(["demo", "memory.host=64MiB", "memory.disk.path=."], capsys)
    assert code == 2
    assert [finding["name"] for finding in findings if finding["level"] == "problem"] == ["plan"]


def test_an_adapter_that_does_not_fit_the_model_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(["demo", "adapter.method=lora", "adapter.targets=[no_such_layer]"], capsys)
    assert code == 2
    assert "no_such_layer" in next(finding["value"] for finding in findings if finding["level"] == "problem")


def test_gated_access_is_asked_for_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    asked = []

    def refuse(name: str, **options: object) -> str:
        asked.append(options["allow_patterns"])
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    code, findings = found(["demo", "model=google/gemma-3-270m"], capsys)
    assert code == 2
    problem = next(finding for finding in findings if finding["level"] == "problem")
    assert "https://huggingface.co/google/gemma-3-270m" in problem["value"]
    assert "hf auth login" in problem["value"]
    assert not any("safetensors" in pattern for pattern in asked[0])


def test_unknown_settings_are_refused_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "demo", "lerning_rate=1", "data.train=none.jsonl"]) == 2
    err = capsys.readouterr().err
    assert "lerning_rate" in err
    assert "none.jsonl" in err


def test_each_finding_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = rows(tmp_path / "train.jsonl", {"x1": "a", "x2": "b", "label": True})
    assert main(["check", "demo", f"data.train={train}", "data.max_length=48"]) == 2
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == len(set(lines))
    assert sum("column 'text' not found" in line for line in lines) == 1
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count("OMP_NUM_THREADS=1 leaves cores unused") <= 1
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count(", OMP_NUM_THREADS=1\n") <= 1


def test_a_label_typed_wrong_once_is_named_with_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [("positive", "negative")[number % 2] for number in range(40)]
    labels[16] = "positve"
    some = [{"text": f"a text {number}", "label": label} for number, label in enumerate(labels)]
    train, validation = rows(tmp_path / "t.jsonl", *some), rows(tmp_path / "v.jsonl", *some[:4], {"text": "b", "label": "neutral"})
    words = ["demo", f"data.train={train}", "data.columns={}", "data.truncation=longest_first"]
    code, findings = found([*words, "data.validation=null", "evaluation.every=null"], capsys)
    assert code == 0, findings
    said = [finding["value"] for finding in findings if finding["name"] == "labels"]
    assert said == [
        "train: label 'positve' (row 17) is close to 'positive' (19 times); if it is that label typed wrong, correct the rows, "
        "as it is a class of its own now"
    ]
    names = "data.label_names=[negative, positive, positve, neutral]"
    code, findings = found([*words, f"data.validation={validation}", names], capsys)
    assert code == 0, findings
    assert "validation: label 'neutral' (row 5) occurs in no row of train" in str(findings)
    out = tmp_path / "runs"
    assert main(["train", *words, f"data.validation={validation}", names, "train.max_steps=1", f"output.folder={out}"]) == 0
    assert "warning: train: label 'positve' (row 17) is close to 'positive'" in capsys.readouterr().out
    assert main(["show", str(out / "demo-001")]) == 0
    assert "occurs in no row of train" in capsys.readouterr().out


def test_rows_of_one_label_alone_teach_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [{"text": f"a text {number}", "label": "good"} for number in range(4)]
    words = ["demo", f"data.train={rows(tmp_path / 't.jsonl', *some)}", "data.columns={}", "data.validation=null"]
    words += ["evaluation.every=null", "data.truncation=longest_first"]
    code, findings = found(words, capsys)
    assert code == 2
    assert "t.jsonl: expected at least two different labels, found 'good' alone" in str(findings)
    code, findings = found([*words, "data.label_names=[good, bad]"], capsys)
    assert code == 0, findings
    assert "train: every row has the label 'good', so that nothing else can be learned" in str(findings)
