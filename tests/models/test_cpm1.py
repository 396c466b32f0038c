"""CPM-1 in ModelCenter's layout against a naive model: distances, contexts, packed texts, width scales; logits and gradients."""

import pytest
import torch
from naive_cpm import Weights, distance_bias, draw, linear, stack, visible
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.cpm1 import CPM1, CPM1Config

PLAIN = {
    "vocab_size": 40, "dim_model": 16, "num_heads": 4, "dim_head": 6, "dim_ff": 24, "num_layers": 2, "norm_eps": 1e-6,
    "position_bias_num_buckets": 16, "position_bias_max_distance": 6, "length_scale": True, "attn_scale": True, "tied": True,
    "ffn_activate_fn": "gated_gelu",
}  # fmt: skip
VARIANTS = {
    "as published": {},
    "untied": {"tied": False},
    "not scaled": {"length_scale": False, "attn_scale": False},
    "plain network": {"ffn_activate_fn": "relu"},
    "with biases": {"norm_bias": True, "att_bias": True, "ffn_bias": True, "norm_eps": 1e-4},
}
LENGTH = 9
IDS = torch.randint(1, 40, (2, LENGTH), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * LENGTH, [1] * 6 + [0] * 3])
CONTEXT = torch.tensor([[1, 1, 1, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0]])
SPANS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 2, 2, 2]])


def naive(weights: Weights, config: dict, ids: Tensor, context: Tensor, spans: Tensor) -> Tensor:
    """(T, V) logits of one row without padding."""
    table, scaled = weights["input_embedding.weight"], config["length_scale"]
    buckets = config["position_bias_num_buckets"], config["position_bias_max_distance"]
    bias = distance_bias(weights["position_bias.relative_attention_bias"], len(ids), *buckets)
    embedded = table[ids] / (config["dim_model"] ** 0.5 if scaled else 1.0)
    hidden = stack(weights, "encoder", embedded, config, visible(len(ids), context, spans), bias)
    head = {"h.weight": table} if config["tied"] else {"h.weight": weights["output_projection.weight"]}
    return linear(head, "h", hidden, length_scale=scaled)


def pair(config: dict) -> tuple[CPM1, dict[str, Tensor]]:
    """Our model, and weights by ModelCenter's names that it has loaded."""
    converter = converter_for("cpm1")
    model = CPM1(CPM1Config(**converter.read_config(config)), "causal_lm").eval()
    mapping = converter.weights("causal_lm", tied=config["tied"], values=model.config.values())
    shapes = {name: tuple(tensor.shape) for name, tensor in mapping.to_theirs(model.state_dict()).items()}
    weights = draw(shapes, 1.0 if config["length_scale"] else 0.2)
    model.load_state_dict(mapping.to_ours(weights))
    return model, weights


@pytest.mark.parametrize("given", ["nothing", "context", "spans", "both"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_the_naive_model(variant, given):
    config = PLAIN | VARIANTS[variant]
    model, weights = pair(config)
    context = CONTEXT if given in ("context", "both") else None
    spans = SPANS if given in ("spans", "both") else None
    found = model(IDS, MASK, context=context, spans=spans).logits
    total, expected_total = 0, 0
    for row, length in enumerate(MASK.sum(1).tolist()):
        flags = torch.zeros(LENGTH) if context is None else context[row]
        texts = torch.zeros(LENGTH) if spans is None else spans[row]
        expected = naive(weights, config, IDS[row, :length], flags[:length], texts[:length])
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-5, atol=1e-5)
        total, expected_total = total + found[row, :length].square().mean(), expected_total + expected.square().mean()
    total.backward()
    expected_total.backward()
    mapping = converter_for("cpm1").weights("causal_lm", tied=config["tied"], values=model.config.values())
    gradients = mapping.to_theirs({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, weights[name].grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@torch.no_grad()
def test_the_loss_scores_no_context_and_no_first_token_of_a_text():
    model, weights = pair(PLAIN)
    expected = []
    for row, length in enumerate(MASK.sum(1).tolist()):
        scores = torch.log_softmax(naive(weights, PLAIN, IDS[row, :length], CONTEXT[row], SPANS[row]), -1)
        for at in range(1, length):
            if SPANS[row, at] == SPANS[row, at - 1] and not CONTEXT[row, at]:
                expected.append(-scores[at - 1, IDS[row, at]])
    labels = IDS.masked_fill(MASK == 0, -100)
    for mode in (model.eval(), model.train()):
        loss = mode(IDS, MASK, context=CONTEXT, spans=SPANS, labels=labels).loss
        torch.testing.assert_close(loss, torch.stack(expected).mean())


@torch.no_grad()
def test_texts_packed_into_a_row_are_as_texts_alone():
    model, _ = pair(PLAIN)
    packed = model(IDS[:1], spans=SPANS[:1], context=CONTEXT[:1]).logits
    for part in (slice(0, 5), slice(5, 9)):
        torch.testing.assert_close(packed[:, part], model(IDS[:1, part], context=CONTEXT[:1, part]).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_padding_on_either_side_changes_nothing():
    model, _ = pair(PLAIN)
    left = torch.cat([IDS[1:, 6:], IDS[1:, :6]], 1)
    found = model(left, MASK[1:].flip(1)).logits[:, 3:]
    torch.testing.assert_close(found, model(IDS[1:, :6]).logits, rtol=0, atol=1e-5)


def test_a_gradient_reaches_every_bucket_that_is_used():
    """ModelCenter's last bucket never learned."""
    model, _ = pair(PLAIN)
    ids = torch.randint(0, 40, (1, 30))
    model(ids, context=torch.ones_like(ids)).logits.square().mean().backward()
    assert bool(model.decoder.position.weight.grad.any(1)[-1])


def test_marks_of_another_shape_are_refused():
    model, _ = pair(PLAIN)
    with pytest.raises(DataError, match=r"spans must have the shape of input_ids, \(2, 9\), found \(2, 8\)"):
        model(IDS, spans=SPANS[:, 1:])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ffn_activate_fn", "gated_gleu", r"ffn_activate_fn: expected one of .* \(did you mean gated_gelu\?\), found 'gated_gleu'"),
        ("pos_bias_type", "rotary", "pos_bias_type: expected 'relative', found 'rotary'; other positions are not built for CPM-1"),
        ("post_layer_norm", True, "post_layer_norm: expected false or null, found true"),
        ("cls_head", 3, "cls_head: expected .*, found 3; a classifier in place of the language model's head is not built"),
        ("dim_head", 0, "dim_head: expected a whole number from 1 to 4096, found 0"),
    ],
)
def test_what_is_not_built_is_refused_by_field_and_value(field, value, message):
    with pytest.raises(ConfigError, match=message):
        converter_for("cpm1").read_config(PLAIN | {field: value})


def test_modelcenters_own_config_is_read(testdata):
    import json

    folder = testdata / "tokenizers" / "cpm1"
    config = CPM1Config(**converter_for("cpm1").read_config(json.loads((folder / "modelcenter_config.json").read_text())))
    plain = CPM1Config()
    assert {name: value for name, value in config.values().items() if getattr(plain, name) != value} == {}
