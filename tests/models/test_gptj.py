"""GPT-J beyond the conformance suite: refusals, and buffers of its old files."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import modelzoo
from modelzoo.errors import ConfigError
from modelzoo.models.gptj import GPTJConfig


def saved(folder):
    config = transformers.GPTJConfig(
        vocab_size=40, n_embd=16, n_layer=1, n_head=2, rotary_dim=4, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    transformers.GPTJForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": True}, r"tie_word_embeddings: expected false, found true; a head that is the token embedding"),
        ({"rotary_dim": None}, r"rotary_dim: expected a whole number from 1 .*, found null"),
        ({"rotary_dim": 3}, r"rotary_size=3 must be even and at most 8"),
        ({"rotary_dim": 10}, r"rotary_size=10 must be even and at most 8"),
        ({"n_head": 3}, r"num_heads=3 does not divide hidden_size=16"),
    ],
)
def test_what_is_not_built_is_refused_by_field_and_value(changes, message, tmp_path):
    path = saved(tmp_path) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=message):
        modelzoo.from_pretrained(tmp_path)


def test_a_tied_config_is_refused():
    with pytest.raises(ConfigError, match="tie_word_embeddings=True is not built for GPT-J"):
        GPTJConfig(tie_word_embeddings=True)


def test_masks_of_old_files_are_left_out_with_the_reason(tmp_path):
    path = saved(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e9)
    save_file(tensors, path, metadata={"format": "pt"})
    report = modelzoo.from_pretrained(tmp_path).load_report
    assert {reason for _, reason in report.ignored} == {"the causal mask, a constant buffer of old transformers"}


def test_the_loss_of_training_in_chunks_uses_the_bias_of_the_head(tmp_path):
    model = modelzoo.from_pretrained(saved(tmp_path))
    torch.nn.init.normal_(model.head.bias)
    ids = torch.arange(8).unsqueeze(0)
    assert torch.allclose(model.train()(ids, labels=ids).loss, model.eval()(ids, labels=ids).loss, atol=1e-6)
