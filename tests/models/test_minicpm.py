"""MiniCPM against transformers' LLaMA with the three scalings of the paper (Hu et al., 2024, appendix A) put in by hand."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.losses import cross_entropy
from modelzoo.models.minicpm import MiniCPM, MiniCPMConfig

LLAMA = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 32, "tie_word_embeddings": True, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
SCALES = {"scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 16}
VARIANTS = {
    "as MiniCPM-2B": ({}, {}),
    "untied": ({"tie_word_embeddings": False}, {}),
    "all heads alike": ({"num_key_value_heads": 6}, {"scale_emb": 12}),
    "no scales": ({}, {"scale_emb": 1, "scale_depth": 3**0.5, "dim_model_base": 24}),
    "defaults": ({}, dict.fromkeys(SCALES, 1)),
    "other theta and biases": ({"rope_theta": 500.0, "attention_bias": True, "rms_norm_eps": 1e-4}, {}),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8}, {}),
    "stretched positions": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {}),
}


class Naive(nn.Module):
    """`llama`'s own layers, called one by one, with the scalings between them."""

    def __init__(self, llama, scales):
        super().__init__()
        self.llama, self.scales = llama, scales

    def forward(self, ids, mask):
        model, config = self.llama.model, self.llama.config
        width = ids.shape[1]
        allowed = torch.ones(width, width).tril().bool() & mask.bool()[:, None, None, :]
        added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
        hidden = model.embed_tokens(ids) * self.scales["scale_emb"]
        phases = model.rotary_emb(hidden, torch.arange(width).unsqueeze(0))
        scale = self.scales["scale_depth"] / config.num_hidden_layers**0.5
        for layer in model.layers:
            attended = layer.self_attn(layer.input_layernorm(hidden), position_embeddings=phases, attention_mask=added)[0]
            hidden = hidden + scale * attended
            hidden = hidden + scale * layer.mlp(layer.post_attention_layernorm(hidden))
        hidden = model.norm(hidden)
        if hasattr(self.llama, "score"):
            return self.llama.score(hidden)[torch.arange(len(ids)), mask.sum(1) - 1]
        return self.llama.lm_head(hidden / (config.hidden_size / self.scales["dim_model_base"]))


def pair(folder, variant="as MiniCPM-2B", kind="ForCausalLM"):
    """The naive model, its folder as MiniCPM publishes it, and ours loaded from there."""
    llama, scales = VARIANTS[variant]
    scales = SCALES | scales
    torch.manual_seed(0)
    theirs = getattr(transformers, f"Llama{kind}")(transformers.LlamaConfig(**(LLAMA | llama))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3).add_(float(parameter.dim() == 1))
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config |= {"model_type": "minicpm", "architectures": [f"MiniCPM{kind}"], "rope_theta": parameters["rope_theta"], **scales}
    config |= {"rope_scaling": llama.get("rope_scaling"), "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"}}
    config.pop("head_dim")
    path.write_text(json.dumps(config))
    return Naive(theirs, scales), modelzoo.from_pretrained(folder)


def batch():
    ids = torch.randint(1, 40, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    mask[2, 1:] = 0
    return ids * mask, mask


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_the_scaled_llama(variant, tmp_path):
    naive, ours = pair(tmp_path, variant)
    ids, mask = batch()
    labels = torch.where(mask.bool(), ids, -100)
    following = torch.cat([labels[:, 1:], torch.full((3, 1), -100)], 1)
    expected, found = naive(ids, mask), ours(ids, mask, labels=labels)
    real = mask.bool()
    torch.testing.assert_close(found.logits[real], expected[real], rtol=0, atol=1e-5)
    cross_entropy(expected, following).backward()
    found.loss.backward()
    tied = ours.config.tie_word_embeddings
    mapping = converter_for("minicpm").weights("causal_lm", tied=tied, values=ours.config.values())
    mapped = mapping.to_theirs({name: parameter.grad for name, parameter in ours.named_parameters()})
    theirs = {name: parameter.grad for name, parameter in naive.llama.named_parameters()}
    assert mapped.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(mapped[name], theirs[name], rtol=0, atol=1e-5, msg=name)
    trained = ours.train()(ids, mask, labels=labels)
    torch.testing.assert_close(trained.loss, found.loss, rtol=0, atol=1e-5)


def test_a_classifier_reads_the_hidden_states_unscaled(tmp_path):
    naive, ours = pair(tmp_path, kind="ForSequenceClassification")
    ids, mask = batch()
    torch.testing.assert_close(ours(ids, mask).logits, naive(ids, mask), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_round_trip_keeps_every_bit_and_every_field(variant, tmp_path):
    _, ours = pair(tmp_path / "theirs", variant)
    ours.save_pretrained(tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "theirs/config.json").read_text()) == json.loads((tmp_path / "ours/config.json").read_text())


def test_a_model_made_here_comes_back_the_same(tmp_path):
    values = {"vocab_size": 40, "hidden_size": 24, "num_layers": 2, "num_heads": 6, "num_key_value_heads": 3, "head_size": 4}
    config = MiniCPMConfig(**values, intermediate_size=20, embedding_scale=12.0, depth_scale=1.4, base_size=8)
    MiniCPM.from_config(config, "causal_lm").save_pretrained(tmp_path)
    assert modelzoo.from_pretrained(tmp_path).config.values() == config.values()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 8}, r"num_experts: expected null or 0, found 8; MiniCPM's mixture of experts is not built"),
        ({"head_dim": 8}, r"head_dim: expected null, found 8; MiniCPM has no such field"),
        ({"sparse_config": {"topk": 64}}, r"sparse_config: expected null, found .*; the sparse attention of MiniCPM 4.1"),
        ({"scale_emb": 0}, r"scale_emb: expected a number above 0.*, found 0"),
        ({"scale_depth": "1.4"}, r"scale_depth: expected a number above 0.*, found '1.4'"),
        ({"dim_model_base": 0.5}, r"dim_model_base: expected a whole number from 1 .*, found 0.5"),
        ({"num_attention_heads": 5}, r"num_attention_heads: expected a divisor of hidden_size=24, found 5"),
        ({"rope_scaling": {"type": "longrope"}}, r"rope_type: expected one of .*, found 'longrope'"),
    ],
)
def test_what_is_not_built_is_refused_by_field_and_value(changes, message, tmp_path):
    pair(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=message):
        modelzoo.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head_size": 64}, "head_size=64 of num_heads=32 must add up to hidden_size=4096"),
        ({"depth_scale": 0.0}, r"depth_scale=0\.0 must be greater than 0"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        MiniCPMConfig(**values)
