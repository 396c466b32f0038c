"""An adapter in the command: info says what it is and how it is used, export proves it against peft."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelzoo.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA run of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["adapter.method=lora", "adapter.r=4", "adapter.train_also=[head,pooler]", "train.max_steps=2"]
    assert main(["train", "demo", *words, f"output.folder={folder}", "output.name=lora"]) == 0
    return folder / "lora-001"


def test_info_says_that_it_is_an_adapter_and_how_it_is_used(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adapter"] == "LoRA, rank 4, alpha 16 (scale 4)"
    assert found["base"].endswith("recipes/demo/model")
    assert "query" in found["applied_to"]
    assert "parameters" not in found
    assert found["trained_values"] > 4 * 128
    assert main(["info", str(run)]) == 0
    text = capsys.readouterr().out
    assert "takes it, merged, for" in text
    assert f"modelzoo predict {run} --text TEXT" in text
    assert f'peft.AutoPeftModelForSequenceClassification.from_pretrained("{run / "final"}")' in text


def test_info_of_a_foreign_adapter_without_its_base(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    values = json.loads((run / "final" / "adapter_config.json").read_text()) | {
        "base_model_name_or_path": "me/base",
        "use_dora": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))
    assert main(["info", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "LoRA, rank 4, alpha 16 (scale 4), DoRA" in text
    assert "me/base is no folder here" in text


def test_an_exported_adapter_is_proved_against_peft(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), str(tmp_path / "out"), "--to", "peft", "--verify"]) == 0
    captured = capsys.readouterr()
    text = captured.out
    assert "LOAD REPORT" not in captured.out + captured.err
    assert "verified  peft's PeftModelForSequenceClassification on BertForSequenceClassification against modelzoo" in text
    assert "Equal within 1e-05" in text
    assert "peft's PeftModel" in (tmp_path / "out" / "README.md").read_text()


def test_a_proof_against_peft_says_nothing_of_the_libraries_own(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "modelzoo", "export", str(run), str(tmp_path / "out"), "--to", "peft", "--verify"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_another_adapter_is_not_equal(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import peft

    from modelzoo.adapter_verification import verify_adapter

    folder = tmp_path / "copy"
    shutil.copytree(run / "final", folder)
    load = peft.PeftModel.from_pretrained

    def changed(*words: object, **options: object) -> object:
        model = load(*words, **options)
        next(value for name, value in model.named_parameters() if "lora_B" in name).data += 0.1
        return model

    assert verify_adapter(folder).is_equal
    monkeypatch.setattr(peft.PeftModel, "from_pretrained", changed)
    assert not verify_adapter(folder).is_equal
