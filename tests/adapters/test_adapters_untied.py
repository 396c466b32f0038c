"""Merging a change of a token table that also scores: two tables, the same outputs, and transformers loads them."""

import json
from pathlib import Path

import pytest
import torch
from harness import Case, reference, row
from safetensors.torch import load_file

import modelzoo
from modelzoo.adapters import AdapterConfig, add_adapter, merge_adapter, save_adapter
from modelzoo.cli import main
from modelzoo.errors import ConfigError
from modelzoo.models.adapted import write_merged
from modelzoo.models.model import Model
from modelzoo.verification import verification_batch, verify

TOLERANCE = 1e-5
CASES = [("gpt2", "causal_lm"), ("llama", "causal_lm"), ("opt", "causal_lm"), ("bert", "masked_lm"), ("t5", "seq2seq_lm")]


def adapter_on_tied(folder: Path, family: str, task: str) -> Model:
    """Write a tied base and an adapter that changes its table; return the model that has both."""
    config = {**row(family)["config"], **({} if family == "t5" else {"tie_word_embeddings": True})}
    reference(Case(family, task, config, "plain")).save_pretrained(folder / "base")
    model = modelzoo.from_pretrained(folder / "base", task=task)
    add_adapter(model, AdapterConfig(method="lora", r=2, targets=("query", "token")))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    save_adapter(model, folder / "adapter")
    return model.eval()


@pytest.mark.parametrize(("family", "task"), CASES)
def test_two_tables_give_the_outputs_of_the_model_before(family: str, task: str, tmp_path: Path) -> None:
    model = adapter_on_tied(tmp_path, family, task)
    expected = model(**verification_batch(model))
    with pytest.raises(ConfigError, match=r"the table also scores the vocabulary .*; write two tables with --untie"):
        write_merged(tmp_path / "adapter", tmp_path / "merged")
    write_merged(tmp_path / "adapter", tmp_path / "merged", untied=True)
    again = modelzoo.from_pretrained(tmp_path / "merged", task=task)
    found = again(**verification_batch(model))
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=TOLERANCE * max(1.0, float(expected.logits.abs().max())))
    assert not again.config.tie_word_embeddings
    assert again.tied_parameters() == ([("token.weight", "decoder")] if family == "t5" else [])
    base = load_file(tmp_path / "base" / "model.safetensors")
    tables = [
        each for each in load_file(tmp_path / "merged" / "model.safetensors").values() if each.shape[0] == 60 and each.dim() == 2
    ]
    assert len(tables) == 2
    assert sum(any(torch.equal(each, old) for old in base.values()) for each in tables) == 1
    report = verify(tmp_path / "merged", local_files_only=True)
    assert report.is_strict
    assert report.is_equal
    if family != "t5":
        assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


def test_the_command_unties_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter_on_tied(tmp_path, "gpt2", "causal_lm")
    words = ["export", str(tmp_path / "adapter"), str(tmp_path / "merged"), "--to", "merged"]
    assert main(words) != 0
    assert not (tmp_path / "merged").exists()
    assert main([*words, "--untie", "--verify"]) == 0
    assert "Equal within 1e-05" in capsys.readouterr().out
    assert main([*words[:2], str(tmp_path / "other"), "--to", "peft", "--untie"]) != 0
    assert "use --to merged --untie, or leave it out" in " ".join(capsys.readouterr().err.split())


def test_what_is_not_tied_is_not_untied(tmp_path: Path) -> None:
    config = {**row("llama")["config"], "tie_word_embeddings": False}
    reference(Case("llama", "causal_lm", config, "plain")).save_pretrained(tmp_path / "base")
    model = modelzoo.from_pretrained(tmp_path / "base")
    add_adapter(model, AdapterConfig(method="lora", r=2))
    with pytest.raises(ConfigError, match=r"Llama for causal_lm: no table looks up and scores, so there is nothing to untie"):
        merge_adapter(model, untied=True)
