"""The command's training commands in Python: the same settings, the same runs, the same text."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import Notes

import modelzoo
from modelzoo.cli import main
from modelzoo.config import load_settings
from modelzoo.errors import ConfigError, InputError, SaveError
from modelzoo.training import SilentProgress

SMALL = {"train": {"epochs": 1, "batch_size": 8}, "data": {"max_rows": 16}, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> modelzoo.Run:
    return modelzoo.train("demo", output={"folder": tmp_path_factory.mktemp("runs"), "name": "small"}, **SMALL)


def test_changes_in_python_are_those_of_the_command_line(tmp_path: Path) -> None:
    words = ["train.epochs=1", "learning_rate=1e-3", "betas=[0.8,0.9]", f"output.folder={tmp_path}", "output.name=007"]
    changes = {"train": {"epochs": 1}, "learning_rate": 1e-3, "betas": (0.8, 0.9), "output": {"folder": tmp_path, "name": "007"}}
    assert modelzoo.settings("demo", **changes) == load_settings("demo", words)
    assert modelzoo.settings("demo", **{"train.epochs": 1, "schedule.warmup": 5}).schedule.warmup == 5


def test_settings_need_no_recipe(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a", "label": "x"}\n')
    found = modelzoo.settings(model="bert-base-uncased", data={"train": rows, "columns": {"label": "kind"}}, num_train_epochs=2)
    assert (found.recipe, found.model.name, found.train.epochs) == ("run", "bert-base-uncased", 2.0)
    assert found.data.train == str(rows)
    assert found.data.columns == {"label": "kind"}


def test_changed_settings_leave_the_first_ones_as_they_are() -> None:
    first = modelzoo.settings("demo")
    second = modelzoo.settings(first, train={"batch_tokens": 512})
    assert (first.train.batch_size, first.train.batch_tokens) == (16, None)
    assert (second.train.batch_size, second.train.batch_tokens) == (None, 512)
    assert second.data == first.data


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        modelzoo.settings("demo", lerning_rate=1, train={"bacth_size": 2, "seed": "x"}, data={"train": "nothing-here.jsonl"})
    for expected in ("4 settings", "did you mean optimizer.lr", "did you mean train.batch_size", "found 'x'", "nothing-here.jsonl"):
        assert expected in str(caught.value)
    with pytest.raises(ConfigError, match=r"of this run cannot be used"):
        modelzoo.settings(data={"train": "demo"})


def test_a_run_is_what_its_folder_says(run: modelzoo.Run) -> None:
    again = modelzoo.Run(run.folder)
    assert run.is_finished
    assert again.best == run.best == max(record["evaluation"]["accuracy"] for record in again.records if "evaluation" in record)
    assert again.settings.optimizer.lr == 1e-3
    assert sum("loss" in record for record in again.records) == 2
    assert again.measured["plan"]["measured_bytes"] > 0
    assert again.evaluate()["accuracy"] == pytest.approx(run.best)
    assert again.model().task == "classification"


def test_a_run_predicts_and_a_finished_one_is_not_trained_again(run: modelzoo.Run) -> None:
    [said] = run.predict([{"question": "Did they rest well?", "passage": "Not a sound came through the walls."}])
    assert said["label"] in {"true", "false"}
    records = run.records
    assert modelzoo.resume(run.folder).records == records


def test_a_finished_run_is_used_where_its_data_and_base_are_gone(run: modelzoo.Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "moved")
    resolved = folder / "resolved.yaml"
    text = resolved.read_text()
    for name in ("train.jsonl", "validation.jsonl", "demo/model"):
        assert name in text
    resolved.write_text(text.replace(str(Path(run.settings.model.name).parent), "/nowhere"))
    moved = modelzoo.Run(folder)
    assert moved.settings.data.train == "/nowhere/data/train.jsonl"
    row = {"question": "Did they rest well?", "passage": "Not a sound came through the walls."}
    assert moved.predict([row]) == run.predict([row])
    assert moved.export(tmp_path / "out").is_dir()
    assert main(["predict", str(folder), "--text", row["question"], "--pair", row["passage"]]) == 0
    assert main(["eval", str(folder), f"data={run.settings.data.validation}"]) == 0
    with pytest.raises(InputError, match=r"/nowhere/data/validation.jsonl"):
        moved.evaluate()
    with pytest.raises(InputError, match=r"data.train=/nowhere/data/train.jsonl: there is no such file"):
        modelzoo.resume(folder)


def test_an_exported_run_is_proved_and_nothing_is_overwritten(run: modelzoo.Run, tmp_path: Path) -> None:
    folder = run.export(tmp_path / "out", verified=True)
    assert (folder / "model.safetensors").read_bytes() == (run.final / "model.safetensors").read_bytes()
    with pytest.raises(SaveError, match="out"):
        run.export(folder)


def test_transformers_gets_the_result(run: modelzoo.Run, tmp_path: Path) -> None:
    theirs, ours = run.to_transformers(), run.model()
    assert type(theirs).__name__ == "BertForSequenceClassification"
    ids = torch.randint(5, 800, (2, 9))
    torch.testing.assert_close(theirs(input_ids=ids).logits, ours(ids).logits, rtol=0, atol=1e-5)
    adapted = tmp_path / "adapted"
    shutil.copytree(run.folder, adapted)
    (adapted / "final" / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds an adapter; export\("):
        modelzoo.Run(adapted).to_transformers()


def test_an_adapter_is_exported_as_a_plain_model(tmp_path: Path) -> None:
    adapter = {"method": "lora", "train_also": ["pooler"]}
    run = modelzoo.train(
        "demo", adapter=adapter, train={"max_steps": 1}, data={"max_rows": 16}, output={"folder": tmp_path / "runs"}
    )
    assert (run.final / "adapter_config.json").is_file()
    folder = run.export(tmp_path / "out", verified=True)
    assert not (folder / "adapter_config.json").exists()
    rows = [{"question": "Did they rest well?", "passage": "Not a sound came through the walls."}]
    [said], [expected] = modelzoo.predict(folder, rows), run.predict(rows)
    assert said["probability"] == pytest.approx(expected["probability"], abs=1e-6)


def test_python_starts_the_processes_that_settings_ask_for(run: modelzoo.Run, tmp_path: Path) -> None:
    progress = Notes()
    small = {"train": {"max_steps": 2, "batch_size": 8}, "data": {"max_rows": 16}, "learning_rate": 1e-3}
    output = {"folder": tmp_path, "name": "two"}
    two = modelzoo.train("demo", progress=progress, parallel={"ranks": 2}, model={"dropout": 0}, output=output, **small)
    assert two.folder == tmp_path / "two-001"
    assert two.is_finished
    assert (two.folder / "env.json").read_text().count('"processes": 2') == 1
    assert "2 processes on cpu" in progress.lines[0]
    assert any(line.startswith("step=2/2 ") for line in progress.lines)
    assert progress.is_closed
    one = modelzoo.train(
        "demo", progress=SilentProgress(), model={"dropout": 0}, output={"folder": tmp_path, "name": "one"}, **small
    )
    assert [record["loss"] for record in two.records if "loss" in record] == pytest.approx(
        [record["loss"] for record in one.records if "loss" in record], abs=1e-6
    )


def test_what_started_processes_say_is_seen_without_any_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = {"folder": tmp_path, "name": "two"}
    modelzoo.train("demo", parallel={"ranks": 2}, output=output, train={"max_steps": 1}, data={"max_rows": 16})
    said = capsys.readouterr()
    assert said.out == ""
    assert "2 processes on cpu" in said.err
    assert "step=1/1 " in said.err


def test_an_error_of_started_processes_is_raised_here(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "a", "passage": "b", "label": 1}\n{"question": "a", "passage": "b"}\n')
    with pytest.raises(InputError, match=r"rows.jsonl: .*row 2"):
        modelzoo.train(
            "demo", progress=Notes(), parallel={"ranks": 2}, output={"folder": tmp_path}, data={"train": rows, "validation": rows}
        )


def test_an_unfinished_run_has_no_result(run: modelzoo.Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"resolved\.yaml"):
        modelzoo.Run(tmp_path)
    (tmp_path / "resolved.yaml").write_text((run.folder / "resolved.yaml").read_text())
    stopped = modelzoo.Run(tmp_path)
    assert (stopped.is_finished, stopped.best, stopped.records, stopped.measured) == (False, None, [], {})
    with pytest.raises(InputError, match=re.escape(f"modelzoo resume {tmp_path}")):
        _ = stopped.final


def test_a_plan_in_python_prints_as_the_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    plan = modelzoo.plan_training(modelzoo.settings("demo", train={"batch_size": 8}), machine="a100-80gb", ranks=2)
    assert main(["plan", "demo", "train.batch_size=8", "--machine", "a100-80gb", "--ranks", "2"]) == 0
    assert capsys.readouterr().out == f"{plan}\n"
    assert plan.fits
    assert plan.peak_bytes == plan.to_json()["tiers"]["device"]["peak_bytes"]
    assert "parameters" in plan.explain("parameters")


def test_the_folder_of_a_run_stands_for_its_settings(run: modelzoo.Run, capsys: pytest.CaptureFixture[str]) -> None:
    again = load_settings(str(run.folder))
    assert again == run.settings
    assert main(["check", str(run.folder)]) == 0
    assert main(["data", "show", str(run.folder), "--rows", "1"]) == 0
    assert "row 1" in capsys.readouterr().out
