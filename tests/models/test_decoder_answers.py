"""Question answering of decoders and T5: losses, answers that are none, and files that begin from a language model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import modelzoo
from modelzoo.errors import ConfigError, DataError

SIZES: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "GPTJ": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "rotary_dim": 4},
    "OPT": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24, "word_embed_proj_dim": 12},
    "Llama": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
    "Mistral": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
    },
    "Qwen3": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
        "head_dim": 8,
    },
    "T5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
}  # fmt: skip
IDS = torch.tensor([[5, 6, 7, 8, 9, 3], [9, 8, 7, 6, 5, 3]])
STARTS, ENDS = torch.tensor([1, 3]), torch.tensor([2, 3])


def saved(name: str, kind: str, folder: Path) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=40, **SIZES[name])
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", SIZES)
def test_the_loss_of_an_answer_equals_transformers_where_nothing_is_padded(name: str, tmp_path: Path) -> None:
    theirs = saved(name, "ForQuestionAnswering", tmp_path)
    ours = modelzoo.from_pretrained(tmp_path)
    assert ours.task == "question_answering"
    found = ours(IDS, start_positions=STARTS, end_positions=ENDS)
    expected = theirs(input_ids=IDS, start_positions=STARTS, end_positions=ENDS)
    for part in ("loss", "start_logits", "end_logits"):
        assert torch.allclose(getattr(found, part), getattr(expected, part), atol=1e-5), part


@pytest.mark.parametrize("name", SIZES)
def test_an_answer_in_padding_is_named_and_padding_is_never_the_answer(name: str, tmp_path: Path) -> None:
    saved(name, "ForQuestionAnswering", tmp_path)
    ours = modelzoo.from_pretrained(tmp_path)
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    output = ours(IDS, attention_mask=mask)
    assert (output.start_logits[1, 4:] == torch.finfo(torch.float32).min).all()
    with pytest.raises(DataError, match="end_positions: row 1: column 5 is padding, which holds no answer"):
        ours(IDS, attention_mask=mask, start_positions=STARTS, end_positions=torch.tensor([2, 5]))
    with pytest.raises(DataError, match="labels were given to a model for question_answering, which takes start_positions"):
        ours(IDS, labels=STARTS)


@pytest.mark.parametrize("name", SIZES)
def test_it_begins_from_a_language_model_and_transformers_loads_what_is_saved(name: str, tmp_path: Path) -> None:
    kind = {"GPT2": "LMHeadModel", "T5": "ForConditionalGeneration"}.get(name, "ForCausalLM")
    saved(name, kind, tmp_path / "lm")
    ours = modelzoo.from_pretrained(tmp_path / "lm", task="question_answering")
    assert set(ours.load_report.new) == {"head.output.weight", "head.output.bias"}
    ours.save_pretrained(tmp_path / "answers")
    cls = getattr(transformers, f"{name}ForQuestionAnswering")
    theirs, info = cls.from_pretrained(tmp_path / "answers", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.allclose(theirs.eval()(input_ids=IDS).start_logits, ours(IDS).start_logits, atol=1e-5)
    again = modelzoo.from_pretrained(tmp_path / "answers")
    assert torch.equal(again(IDS).end_logits, ours(IDS).end_logits)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_the_backbone_has_the_name_that_transformers_gives_it_there(name: str, tmp_path: Path) -> None:
    saved(name, "ForQuestionAnswering", tmp_path / "theirs")
    modelzoo.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    names = set(load_file(tmp_path / "ours" / "model.safetensors"))
    assert names == set(load_file(tmp_path / "theirs" / "model.safetensors"))
    assert "transformer.embed_tokens.weight" in names
    with pytest.raises(modelzoo.errors.CheckpointError, match=r"a language model's head is never drawn anew"):
        modelzoo.from_pretrained(tmp_path / "ours", task="causal_lm")


def test_families_without_it_say_which_tasks_they_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task='question_answering' is not one of MiniCPM's tasks; use base, causal_lm, classif"):
        modelzoo.MiniCPM.from_config(modelzoo.MiniCPMConfig(), "question_answering")
