"""`modelzoo convert` and `modelzoo verify` on tiny models that transformers wrote."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from modelzoo.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=24
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_convert_writes_what_it_read(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert main(["convert", str(model), str(target)]) == 0
    assert "Bert for classification" in capsys.readouterr().out
    theirs, ours = load_file(model / "model.safetensors"), load_file(target / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert json.loads((model / "config.json").read_text()) == json.loads((target / "config.json").read_text())


def test_convert_changes_the_dtype_when_asked(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "half"
    assert main(["convert", str(model), str(target), "--dtype", "float16"]) == 0
    assert {tensor.dtype for tensor in load_file(target / "model.safetensors").values()} == {torch.float16}
    assert json.loads((target / "config.json").read_text())["dtype"] == "float16"


def test_convert_takes_another_head_and_says_it_is_new(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "base"
    assert main(["convert", str(model), str(target), "--task", "base"]) == 0
    assert json.loads((target / "config.json").read_text())["architectures"] == ["BertModel"]
    assert main(["convert", str(model), str(tmp_path / "tokens"), "--task", "token_classification"]) == 0
    assert "head.output.weight" in capsys.readouterr().out


def test_convert_cuts_into_shards(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards"
    assert main(["convert", str(model), str(target), "--max-shard-size", "10KB"]) == 0
    assert (target / "model.safetensors.index.json").is_file()
    assert transformers.AutoModelForSequenceClassification.from_pretrained(target).num_labels == 2


def test_convert_reads_pickle_only_when_allowed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    target = tmp_path / "out"
    assert main(["convert", str(model), str(target)]) == 2
    assert "pytorch_model.bin" in capsys.readouterr().err
    assert not target.exists()
    assert main(["convert", str(model), str(target), "--allow-pickle"]) == 0
    assert (target / "model.safetensors").is_file()


def test_convert_touches_no_existing_folder(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").touch()
    assert main(["convert", str(model), str(target)]) == 3
    assert str(target) in capsys.readouterr().err
    assert [file.name for file in target.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--dtype", "float99"], "float99"), (["--task", "poetry"], "poetry"), (["--max-shard-size", "many"], "many")],
)
def test_convert_refuses_what_it_does_not_know(
    words: list[str], said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(model), str(tmp_path / "out"), *words]) in (2, 3)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_verify_says_the_differences_and_its_exit_code(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(model)]) == 0
    text = capsys.readouterr().out
    assert "BertForSequenceClassification of transformers against modelzoo" in text
    assert " equal within 1e-05" in text
    assert main(["verify", str(model), "--tolerance", "1e-12"]) == 1
    assert "NOT equal within 1e-12" in capsys.readouterr().out
    assert main(["verify", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_equal"] is True
    assert 0 <= found["outputs"]["logits"] <= 1e-5


def test_verify_and_convert_take_a_run(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run-001"
    run.mkdir()
    model.rename(run / "final")
    assert main(["verify", str(run)]) == 0
    assert main(["convert", str(run), str(tmp_path / "out")]) == 0


def test_a_config_without_model_type_needs_the_family(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model / "config.json"
    config = json.loads(file.read_text())
    del config["model_type"]
    file.write_text(json.dumps(config))
    assert main(["verify", str(model)]) == 2
    assert "model_type" in capsys.readouterr().err
    assert main(["verify", str(model), "--family", "bert"]) == 0
    assert main(["convert", str(model), str(tmp_path / "out"), "--family", "bert"]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


def test_a_damaged_folder_is_one_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["classifier.weight"][0, 0] = float("nan")
    save_file(tensors, model / "model.safetensors")
    assert main(["verify", str(model)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "classifier.weight" in message


def test_every_real_bert_and_roberta_equals_transformers(testdata: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {}
    for file in testdata.glob("checkpoints*/*/config.json"):
        config = json.loads(file.read_text())
        is_old = "model_type" not in config and "hidden_size" in config
        if is_old or config.get("model_type") in ("bert", "roberta"):
            folders[file.parent] = ["--family", "bert"] if is_old else []
    assert len(folders) >= 10
    for folder, words in folders.items():
        assert main(["verify", str(folder), "--allow-pickle", *words]) == 0, capsys.readouterr()
