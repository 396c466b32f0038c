"""CPM-3 against a naive model: soft prompts, segments, contexts on both sides; logits and gradients."""

import pytest
import torch
from naive_cpm import Weights, bucket, draw, linear, stack, visible
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.cpm3 import CPM3, CPM3Config

PLAIN = {
    "vocab_size": 40, "dim_model": 16, "num_heads": 4, "dim_head": 6, "dim_ff": 24, "num_layers": 2, "norm_eps": 1e-6,
    "position_bias_num_buckets": 16, "position_bias_max_distance": 6, "length_scale": True, "attn_scale": True, "tied": True,
    "ffn_activate_fn": "gated_gelu", "prompt_types": 3, "prompt_length": 4, "segment_types": 4,
}  # fmt: skip
VARIANTS = {
    "as published": {},
    "untied": {"tied": False},
    "not scaled": {"length_scale": False, "attn_scale": False},
    "with biases": {"norm_bias": True, "att_bias": True, "ffn_bias": True, "ffn_activate_fn": "relu", "norm_eps": 1e-4},
}
IDS = torch.randint(1, 40, (2, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
CONTEXT = torch.tensor([[1, 1, 1, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0]])  # a blank with a context on both sides
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 2, 3, 3], [1, 1, 2, 2, 2, 0, 0, 0]])


def naive(weights: Weights, config: dict, ids: Tensor, context: Tensor, segments: Tensor, prompt: int) -> Tensor:
    """(T, V) logits of one row without padding."""
    length, scaled = config["prompt_length"], config["length_scale"]
    table = weights["input_embedding.weight"]
    hidden = torch.cat([weights["prompt_embedding.weight"][prompt * length : (prompt + 1) * length], table[ids]])
    hidden = hidden / (config["dim_model"] ** 0.5 if scaled else 1.0)
    kinds = [0] * length + segments.tolist()
    buckets, furthest = config["position_bias_num_buckets"], config["position_bias_max_distance"]
    rows = [
        [
            bucket(key - query, buckets, furthest) if own == other else buckets + own * config["segment_types"] + other
            for key, other in enumerate(kinds)
        ]
        for query, own in enumerate(kinds)
    ]
    bias = weights["position_bias.relative_attention_bias"][torch.tensor(rows)].permute(2, 0, 1)
    flags = torch.cat([torch.ones(length), context])
    hidden = stack(weights, "encoder", hidden, config, visible(len(kinds), flags), bias)[length:]
    head = {"h.weight": table if config["tied"] else weights["output_projection.weight"]}
    return linear(head, "h", hidden, length_scale=scaled)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_the_naive_model(variant):
    config = PLAIN | VARIANTS[variant]
    converter = converter_for("cpm3")
    model = CPM3(CPM3Config(**converter.read_config(config)), "causal_lm").eval()
    mapping = converter.weights("causal_lm", tied=config["tied"], values=model.config.values())
    shapes = {name: tuple(tensor.shape) for name, tensor in mapping.to_theirs(model.state_dict()).items()}
    weights = draw(shapes, 1.0 if config["length_scale"] else 0.2)
    model.load_state_dict(mapping.to_ours(weights))
    found = model(IDS, MASK, context=CONTEXT, segment_ids=SEGMENTS, prompt_types=torch.tensor([0, 2])).logits
    total, expected_total = 0, 0
    for row, (length, prompt) in enumerate(((8, 0), (5, 2))):
        expected = naive(weights, config, IDS[row, :length], CONTEXT[row, :length], SEGMENTS[row, :length], prompt)
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-5, atol=1e-5)
        total, expected_total = total + found[row, :length].square().mean(), expected_total + expected.square().mean()
    total.backward()
    expected_total.backward()
    gradients = mapping.to_theirs({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, weights[name].grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_defaults_are_modelcenters():
    assert CPM3Config(**converter_for("cpm3").read_config({})).values() == CPM3Config().values()


def test_a_bias_without_distances_is_refused():
    with pytest.raises(
        ConfigError, match="absolute_inner_segment: expected true, found false; a bias without distances is not built"
    ):
        converter_for("cpm3").read_config(PLAIN | {"absolute_inner_segment": False})
