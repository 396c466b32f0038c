"""train, resume, eval, predict and demo from end to end, on a BERT of two layers and width 16 and a handful of rows."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from modelzoo.cli import main

WORDS = ["the", "cat", "dog", "mat", "sat", "ran", "on", "is", "red", "blue", "who", "what", "true", "false", "not", "fast"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_rows(file: Path, count: int, seed: int) -> Path:
    generator = random.Random(seed)
    lines = []
    for _ in range(count):
        passage = generator.choices(WORDS, k=generator.randint(3, 12))
        word = generator.choice(WORDS)
        lines.append(json.dumps({"question": f"is {word}", "passage": " ".join(passage), "label": word in passage}))
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that transformers wrote, its vocabulary, and rows."""
    folder = tmp_path_factory.mktemp("place")
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL + WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder / "model")
    (folder / "model" / "vocab.txt").write_text("\n".join(SPECIAL + WORDS) + "\n")
    write_rows(folder / "train.jsonl", 22, 0)
    write_rows(folder / "validation.jsonl", 9, 1)
    return folder


def words(place: Path, runs: Path, *more: str) -> list[str]:
    return [
        f"model={place}/model",
        f"data.train={place}/train.jsonl",
        f"data.validation={place}/validation.jsonl",
        "train.batch_size=4",
        "max_length=32",
        f"output.folder={runs}",
        *more,
    ]


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A finished run."""
    assert main(["train", "bert-boolq", *words(place, place / "runs", "epochs=1")]) == 0
    return place / "runs" / "bert-boolq-001"


def test_train_says_what_it_reads_and_what_is_next(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "bert-boolq", *words(place, tmp_path, "num_train_epochs=1", "output.name=mine")]) == 0
    captured = capsys.readouterr()
    for part in (
        "num_train_epochs is read as train.epochs=1",
        "data.name=super_glue/boolq of the recipe gives way to data.train",
        "Bert for classification",
        "22 rows",
        "best accuracy",
        "always the commonest label",
        f"modelzoo predict {tmp_path}/mine-001 --text TEXT",
    ):
        assert part in captured.out
    assert captured.err == ""
    kept = {file.name for file in (tmp_path / "mine-001").iterdir()}
    assert {"recipe.yaml", "resolved.yaml", "command.txt", "env.json", "data.json", "metrics.jsonl", "final"} <= kept


def test_what_a_run_resolved_is_a_recipe_that_can_be_trained_again(run: Path) -> None:
    from modelzoo.config import dump_settings, load_settings

    settings = load_settings(str(run / "resolved.yaml"))
    assert settings.train.epochs == 1
    assert dump_settings(settings) == (run / "resolved.yaml").read_text()


def test_train_writes_nothing_when_the_data_are_wrong(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "is red", "passage": "the red cat"}\n')
    runs = tmp_path / "runs"
    assert main(["train", "bert-boolq", *words(place, runs)[:1], f"data.train={rows}", f"output.folder={runs}"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "label" in captured.err
    assert not runs.exists()


def test_the_same_run_twice_gets_two_folders(place: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["train", "bert-boolq", *words(place, tmp_path, "train.max_steps=1")]) == 0
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["bert-boolq-001", "bert-boolq-002"]


def test_resume_of_a_finished_run_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run)]) == 0
    assert "is finished already" in capsys.readouterr().out


def test_resume_of_something_else_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_eval_measures_own_rows_or_those_of_the_run(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--json"]) == 0
    of_run = json.loads(capsys.readouterr().out)
    assert main(["eval", str(run), f"data={place}/validation.jsonl", "--json"]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert of_file.pop("rows") | {"name": ""} == of_run.pop("rows") | {"name": ""}
    assert of_file == of_run
    best = json.loads((run / "result.json").read_text())
    assert of_run["accuracy"] == best["best_metric"]
    assert main(["eval", str(run / "final"), f"data={place}/validation.jsonl", "max_length=32", "max_rows=3"]) == 0
    text = capsys.readouterr().out
    assert "accuracy" in text
    assert "majority" in text


def test_eval_takes_columns_of_other_names(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("q,p,gold\nis red,the red cat,true\nis blue,the red cat,false\n")
    assert main(["eval", str(run), f"data={rows}"]) == 2
    assert "columns found   q, p, gold" in capsys.readouterr().err
    assert main(["eval", str(run), f"data={rows}", "columns={text_a: q, text_b: p}", "columns.label=gold", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"accuracy", "f1", "loss", "majority"}


def test_eval_lists_all_wrong_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "data=gone.jsonl", "max_lenght=3", "max_rows=0", "split"]) == 2
    message = capsys.readouterr().err
    for part in (
        "data=gone.jsonl: there is no such file",
        "did you mean max_length?",
        "max_rows: expected an integer >= 1; found 0",
        "split",
    ):
        assert part in message


def test_predict_answers_texts_and_files_alike(run: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (place / "validation.jsonl").read_text().splitlines()]
    output = tmp_path / "out.jsonl"
    assert main(["predict", str(run), "--file", f"{place}/validation.jsonl", "--output", str(output)]) == 0
    assert "wrote 9 predictions" in capsys.readouterr().out
    predictions = [json.loads(line) for line in output.read_text().splitlines()]
    assert (
        main(["predict", str(run), *(word for row in rows for word in ("--text", row["question"], "--pair", row["passage"]))]) == 0
    )
    typed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in typed] == [one["label"] for one in predictions]
    for one, other in zip(typed, predictions, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)
        assert sum(one["probabilities"].values()) == pytest.approx(1)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(run / "final")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "final")
    batch = tokenizer(rows[0]["question"], rows[0]["passage"], return_tensors="pt")
    expected = theirs(**batch).logits.softmax(-1)[0].tolist()
    assert list(typed[0]["probabilities"].values()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "expected either --text TEXT or --file FILE; found neither"),
        (["--text", "a", "--file", "b.jsonl"], "found both"),
        (["--text", "a", "--text", "b", "--pair", "c"], "expected one --pair for each --text; found 1 for 2"),
        (["--file", "gone.jsonl"], "gone.jsonl"),
        (["--text", "a", "max_rows=3"], "max_rows: is not known"),
    ],
)
def test_predict_refuses_what_it_cannot_use(more: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), *more]) == 2
    assert said in capsys.readouterr().err


def test_predict_overwrites_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("precious")
    assert main(["predict", str(run), "--text", "is red", "--pair", "red", "--output", str(output)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert output.read_text() == "precious"


def test_demo_proves_that_transformers_loads_its_result(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words(place, tmp_path, "train.max_steps=3")]) == 0
    text = capsys.readouterr().out
    assert "always the commonest label" in text
    assert "transformers' BertForSequenceClassification loads it strictly" in text
    assert "in logits" in text
    assert "within 1e-05" in text
    assert "NOT" not in text
    asked = next(line for line in text.splitlines() if line.startswith("ask "))
    assert main(shlex.split(asked)[2:]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("true", "false")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_run_that_is_stopped_is_saved_and_goes_on(number: signal.Signals, code: int, place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "modelzoo", "train", "bert-boolq", *words(place, tmp_path, "train.epochs=2000")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step=1/"):
                break
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert f"modelzoo resume {tmp_path}/bert-boolq-001" in output
    assert errors == ""
    assert "step" in next(
        iter(folder.name for folder in (tmp_path / "bert-boolq-001" / "checkpoints").iterdir() if folder.is_dir())
    )


def test_two_processes_are_one_run_and_one_voice(place: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "modelzoo"]
    command += ["train", "bert-boolq", *words(place, tmp_path, "epochs=1", "model.dropout=0")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished ") == 1
    assert main(["train", "bert-boolq", *words(place, tmp_path, "epochs=1", "model.dropout=0")]) == 0
    two, one = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("bert-boolq-001", "bert-boolq-002")
    )
    losses = [(mine["loss"], other["loss"]) for mine, other in zip(two, one, strict=True) if "loss" in mine]
    assert losses
    for mine, other in losses:
        assert mine == pytest.approx(other, abs=1e-6)
