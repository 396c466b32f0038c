"""OPT beyond the conformance suite: what a config or a file must not lack."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import modelzoo
from modelzoo.errors import CheckpointError, ConfigError, DataError
from modelzoo.models.opt import OPT, OPTConfig

TINY = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 12}


def saved(folder, **changes):
    config = transformers.OPTConfig(**TINY, max_position_embeddings=16, **changes)
    transformers.OPTForCausalLM(config).save_pretrained(folder)
    return folder


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_file_without_the_final_norm_is_refused_by_name(tmp_path):
    path = saved(tmp_path) / "model.safetensors"
    tensors = {name: each for name, each in load_file(path).items() if not name.startswith("model.decoder.final_layer_norm")}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.decoder\.final_layer_norm\.weight: expected a tensor of shape \[8\]"):
        modelzoo.from_pretrained(tmp_path)


def test_a_final_norm_that_the_config_denies_is_refused_by_name(tmp_path):
    saved(tmp_path)
    rewrite(tmp_path, _remove_final_layer_norm=True)
    with pytest.raises(CheckpointError, match=r"model\.decoder\.final_layer_norm"):
        modelzoo.from_pretrained(tmp_path)


def test_keys_of_the_first_files_are_read(tmp_path):
    path = saved(tmp_path) / "model.safetensors"
    expected = modelzoo.from_pretrained(tmp_path).state_dict()
    tensors = {name.removeprefix("model."): each for name, each in load_file(path).items()}
    tensors["lm_head.weight"] = tensors["decoder.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    found = modelzoo.from_pretrained(tmp_path).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layerdrop": 0.1}, r"layerdrop: expected 0.0 or null, found 0.1; skipping whole layers in training is not built"),
        ({"_remove_final_layer_norm": "yes"}, r"_remove_final_layer_norm: expected true or false, found 'yes'"),
        ({"activation_function": "rellu"}, r"activation_function: expected one of .*did you mean relu\?\), found 'rellu'"),
        ({"word_embed_proj_dim": 0}, r"word_embed_proj_dim: expected a whole number from 1 .*, found 0"),
    ],
)
def test_what_is_not_built_is_refused_by_field_and_value(changes, message, tmp_path):
    saved(tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        modelzoo.from_pretrained(tmp_path)


def test_a_final_norm_after_post_norm_blocks_is_refused():
    with pytest.raises(ConfigError, match="has_final_norm=True needs is_pre_norm=True"):
        OPTConfig(is_pre_norm=False)


def test_every_row_of_the_position_table_but_two_can_be_used():
    config = OPTConfig(vocab_size=40, hidden_size=8, word_size=8, num_layers=1, num_heads=2, intermediate_size=8, max_positions=6)
    model = OPT.from_config(config, "causal_lm").eval()
    assert model.embeddings.position.weight.shape == (8, 8)
    assert model(torch.ones(1, 6, dtype=torch.long)).logits.shape == (1, 6, 40)
    with pytest.raises(DataError, match="7"):
        model(torch.ones(1, 7, dtype=torch.long))
