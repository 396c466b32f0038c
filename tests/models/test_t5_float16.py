"""T5 in float16: refused before it computes nonsense; bfloat16 and float32 are finite."""

from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.cli import main
from modelzoo.errors import ConfigError
from modelzoo.models.cpm2 import CPM2, CPM2Config
from modelzoo.models.t5 import T5

SIZES = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
BATCH = {"input_ids": torch.tensor([[5, 6, 7, 1]]), "decoder_input_ids": torch.tensor([[0, 8, 9]])}
MESSAGE = r"T5 cannot run in float16: .* beyond 65504 .* load it with dtype='bfloat16' or dtype='float32'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 whose inner features are as large as those of the published models."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES))
    for name, parameter in model.named_parameters():
        parameter.data *= {"wo.weight": 4000, "wi.weight": 40}.get(name.split(".", name.count(".") - 1)[-1], 1)
    model.save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wide_dtypes_are_finite(folder: Path, dtype: str) -> None:
    assert modelzoo.from_pretrained(folder, dtype=dtype)(**BATCH).logits.isfinite().all()


def test_float16_would_overflow_and_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = modelzoo.from_pretrained(folder, dtype="float16")
    with pytest.raises(ConfigError, match=MESSAGE):
        model(**BATCH)
    with pytest.raises(ConfigError, match=MESSAGE):
        model.prefill(BATCH["input_ids"], None, max_new_tokens=2)
    monkeypatch.setattr(T5, "runs_in_float16", True)
    assert not model(**BATCH).logits.isfinite().all()


def test_autocast_to_float16_is_refused_too(folder: Path) -> None:
    model = modelzoo.from_pretrained(folder)
    with torch.autocast("cpu", torch.float16), pytest.raises(ConfigError, match=MESSAGE):
        model(**BATCH)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(**BATCH).logits.isfinite().all()


def test_a_file_in_float16_runs_in_another_dtype_and_can_be_written(folder: Path, tmp_path: Path) -> None:
    modelzoo.from_pretrained(folder, dtype="float16").save_pretrained(tmp_path / "half")
    with pytest.raises(ConfigError, match=MESSAGE):
        modelzoo.from_pretrained(tmp_path / "half")(**BATCH)
    assert modelzoo.from_pretrained(tmp_path / "half", dtype="float32")(**BATCH).logits.isfinite().all()


def test_the_command_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "--ids", "5 6 1", "--dtype", "float16"]) == 2
    assert "load it with dtype='bfloat16' or dtype='float32'" in capsys.readouterr().err


def test_cpm2_was_made_for_float16() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "head_size": 8, "intermediate_size": 32, "num_layers": 1, "num_heads": 2}
    model = CPM2.from_config(CPM2Config(**sizes, num_decoder_layers=1), "seq2seq_lm").half()
    assert model(**BATCH).logits.isfinite().all()
