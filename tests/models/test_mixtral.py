"""Mixtral and Qwen2-MoE beyond the conformance suite: the router's loss, files whose experts do not fit, refusals."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import modelzoo
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.layers import MixtureOfExperts
from modelzoo.models.mixtral import Mixtral, MixtralConfig, Qwen2Moe, Qwen2MoeConfig

COMMON = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.7,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MIXTRAL = {**COMMON, "num_hidden_layers": 2, "num_local_experts": 4}
QWEN = {
    **COMMON,
    "num_hidden_layers": 4,
    "num_experts": 4,
    "moe_intermediate_size": 4,
    "shared_expert_intermediate_size": 12,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}


def saved(folder, model_type="mixtral", **changes):
    config = transformers.AutoConfig.for_model(model_type, **(MIXTRAL if model_type == "mixtral" else QWEN), **changes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def batch():
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe"])
def test_the_loss_in_training_has_the_routers_term_as_in_transformers(model_type, tmp_path):
    saved(tmp_path, model_type, output_router_logits=True)
    ours = modelzoo.from_pretrained(tmp_path).train()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).train()
    mine, other = ours(**batch()).loss, theirs(**batch()).loss
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    rewrite(tmp_path, output_router_logits=False)
    without = modelzoo.from_pretrained(tmp_path).train()(**batch()).loss
    assert (mine - without).item() > 0.7 * 2 * 0.99  # k when all are used evenly, more otherwise


def test_a_classifier_has_no_routers_term(tmp_path):
    saved(tmp_path, output_router_logits=True)
    with_term = modelzoo.from_pretrained(tmp_path, task="classification")
    rewrite(tmp_path, output_router_logits=False)
    without = modelzoo.from_pretrained(tmp_path, task="classification")
    without.load_state_dict(with_term.state_dict())
    inputs = {**batch(), "labels": torch.tensor([0, 1, 1])}
    assert torch.equal(with_term(**inputs).loss, without(**inputs).loss)


def test_layers_have_experts_where_the_config_says(tmp_path):
    model = modelzoo.from_pretrained(saved(tmp_path, "qwen2_moe"))
    kinds = [isinstance(layer.feed_forward.sublayer, MixtureOfExperts) for layer in model.decoder.layers]
    assert kinds == [False, True, False, False]


def test_a_model_without_any_layer_of_experts_has_no_routers_term(tmp_path):
    config = Qwen2MoeConfig(
        vocab_size=40,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_key_value_heads=1,
        head_size=4,
        intermediate_size=6,
        dense_layers=(0,),
        has_router_loss=True,
    )
    assert Qwen2Moe.from_config(config, "causal_lm")(**batch()).loss.isfinite()


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe"])
def test_a_file_that_lacks_one_expert_is_refused_by_name(model_type, tmp_path):
    path = saved(tmp_path, model_type) / "model.safetensors"
    tensors = load_file(path)
    lost = sorted(name for name in tensors if ".experts.2." in name)[0]
    tensors.pop(lost)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=lost.replace(".", r"\.")):
        modelzoo.from_pretrained(tmp_path)


def test_a_file_with_more_experts_than_the_config_is_refused(tmp_path):
    rewrite(saved(tmp_path), num_local_experts=3)
    with pytest.raises(CheckpointError, match=r"gate\.weight: expected shape \[3, 8\] .*found \[4, 8\]"):
        modelzoo.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("mixtral", {"router_jitter_noise": 0.1}, r"router_jitter_noise: expected 0\.0 .*found 0\.1; noise on the router's input"),
        ("mixtral", {"num_experts_per_tok": 5}, r"experts_per_token=5 must lie in 1 to num_experts=4"),
        ("mixtral", {"num_local_experts": 0}, r"num_local_experts: expected a whole number from 1 .*found 0"),
        ("mixtral", {"router_aux_loss_coef": -1}, r"router_aux_loss_coef: expected a number above 0.*found -1"),
        ("qwen2_moe", {"mlp_only_layers": "all"}, r"mlp_only_layers: expected a list of layer numbers or null, found 'all'"),
        ("qwen2_moe", {"decoder_sparse_step": 0}, r"decoder_sparse_step: expected a whole number from 1 .*found 0"),
    ],
)
def test_what_is_not_built_is_refused_by_field_and_value(model_type, changes, message, tmp_path):
    rewrite(saved(tmp_path, model_type), **changes)
    with pytest.raises(ConfigError, match=message):
        modelzoo.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MixtralConfig, {"feed_forward_bias": True}, "feed_forward_bias=True is not built with experts"),
        (MixtralConfig, {"router_loss_weight": -0.5}, r"router_loss_weight=-0\.5 must be 0 or more"),
        (Qwen2MoeConfig, {"expert_size": 0}, "expert_size=0 must be at least 1"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(**values)


def test_fresh_experts_have_the_configs_standard_deviation():
    config = MixtralConfig(
        vocab_size=40,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        num_key_value_heads=1,
        head_size=16,
        intermediate_size=32,
        initializer_range=0.1,
    )
    experts = Mixtral.from_config(config, "base").decoder.layers[0].feed_forward.sublayer.experts
    assert experts.up.std().item() == pytest.approx(0.1, rel=0.1)
