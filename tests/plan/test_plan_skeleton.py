"""The skeleton that is planned has the tensors that the loader would read."""

from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.plan.skeleton import skeleton

OURS = {
    "vocab_size": 40,
    "hidden_size": 16,
    "head_size": 8,
    "intermediate_size": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
}
SIZES = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_t5_is_planned_with_the_output_layer_that_its_file_holds(tmp_path: Path, is_tied: bool) -> None:
    torch.manual_seed(0)
    model = modelzoo.T5.from_config(modelzoo.T5Config(**OURS, tie_word_embeddings=is_tied), task="seq2seq_lm")
    model.save_pretrained(tmp_path / "t5")
    loaded = modelzoo.from_pretrained(tmp_path / "t5")
    count = sum(parameter.numel() for parameter in loaded.parameters())
    assert count == sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in skeleton(tmp_path / "t5").parameters()) == count


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    transformers.T5Config(**SIZES, architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    assert skeleton(tmp_path).config.tie_word_embeddings


def test_nothing_of_a_hub_model_but_its_small_files_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path)
    asked: list[dict[str, object]] = []

    def resolve(name: str, **options: object) -> Path:
        asked.append(options)
        return tmp_path

    monkeypatch.setattr("modelzoo.hub.resolve", resolve)
    skeleton("org/name", task="causal_lm")
    assert asked == [{"with_weights": False}]
