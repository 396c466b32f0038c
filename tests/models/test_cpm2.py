"""CPM-2 against a naive encoder-decoder: logits and gradients, unequal lengths on both sides, the loss."""

import pytest
import torch
from naive_cpm import Weights, distance_bias, draw, linear, stack
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.cpm2 import CPM2, CPM2Config

PLAIN = {
    "vocab_size": 40, "dim_model": 16, "num_heads": 4, "dim_head": 6, "dim_ff": 24, "num_encoder_layers": 2,
    "num_decoder_layers": 3, "norm_eps": 1e-6, "position_bias_num_buckets": 8, "position_bias_max_distance": 6,
    "length_scale": True, "attn_scale": False, "ffn_activate_fn": "gated_gelu",
}  # fmt: skip
VARIANTS = {
    "as published": {},
    "not scaled": {"length_scale": False},
    "scaled scores": {"attn_scale": True, "norm_eps": 1e-4},
    "plain network": {"ffn_activate_fn": "relu"},
}
IDS = torch.randint(8, 40, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
DECODER_IDS = torch.randint(8, 40, (2, 9), generator=torch.Generator().manual_seed(1))
DECODER_MASK = torch.tensor([[1] * 5 + [0] * 4, [1] * 9])


def naive(weights: Weights, config: dict, ids: Tensor, decoder_ids: Tensor) -> Tensor:
    """(T, V) logits of one row without padding; the token table is not scaled."""
    table = weights["input_embedding.weight"]
    buckets = config["position_bias_num_buckets"], config["position_bias_max_distance"]
    bias = distance_bias(weights["position_bias_enc.relative_attention_bias"], len(ids), *buckets)
    everything = torch.ones(len(ids), len(ids), dtype=torch.bool)
    context = stack(weights, "encoder", table[ids], config, everything, bias)
    bias = distance_bias(weights["position_bias_dec.relative_attention_bias"], len(decoder_ids), *buckets, both_sides=False)
    causal = torch.ones(len(decoder_ids), len(decoder_ids)).tril().bool()
    hidden = stack(weights, "decoder", table[decoder_ids], config, causal, bias, context=context)
    return linear(weights, "output_projection", hidden, length_scale=config["length_scale"])


def pair(config: dict) -> tuple[CPM2, dict[str, Tensor]]:
    converter = converter_for("cpm2")
    model = CPM2(CPM2Config(**converter.read_config(config)), "seq2seq_lm").eval()
    mapping = converter.weights("seq2seq_lm", tied=False, values=model.config.values())
    shapes = {name: tuple(tensor.shape) for name, tensor in mapping.to_theirs(model.state_dict()).items()}
    weights = draw(shapes, 1.0 if config["length_scale"] else 0.2)
    model.load_state_dict(mapping.to_ours(weights))
    return model, weights


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_the_naive_model(variant):
    config = PLAIN | VARIANTS[variant]
    model, weights = pair(config)
    found = model(IDS, MASK, decoder_input_ids=DECODER_IDS, decoder_attention_mask=DECODER_MASK).logits
    total, expected_total = 0, 0
    for row, (length, width) in enumerate(zip(MASK.sum(1).tolist(), DECODER_MASK.sum(1).tolist(), strict=True)):
        expected = naive(weights, config, IDS[row, :length], DECODER_IDS[row, :width])
        torch.testing.assert_close(found[row, :width], expected, rtol=1e-5, atol=1e-5)
        total, expected_total = total + found[row, :width].square().mean(), expected_total + expected.square().mean()
    total.backward()
    expected_total.backward()
    mapping = converter_for("cpm2").weights("seq2seq_lm", tied=False, values=model.config.values())
    gradients = mapping.to_theirs({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, weights[name].grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@torch.no_grad()
def test_the_decoder_starts_from_its_start_token_and_is_scored_on_the_labels():
    model, weights = pair(PLAIN)
    labels = DECODER_IDS[:1, :4]
    shifted = torch.cat([torch.tensor([1]), labels[0, :-1]])  # <s> is token 1
    scores = torch.log_softmax(naive(weights, PLAIN, IDS[0], shifted), -1)
    expected = -scores.gather(1, labels[0, :, None]).mean()
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(IDS[:1], labels=labels).loss, expected)


def test_what_is_not_built_is_refused():
    with pytest.raises(ConfigError, match="att_bias: expected false or null, found true; biases are not built for CPM-2"):
        converter_for("cpm2").read_config(PLAIN | {"att_bias": True})
    with pytest.raises(ConfigError, match="tie_word_embeddings=True is not built for CPM-2"):
        CPM2Config(tie_word_embeddings=True)
    with pytest.raises(ConfigError, match="scale_decoder_outputs=True must equal length_scale=False"):
        CPM2Config(length_scale=False)


def test_dropout_is_in_the_blocks_alone():
    model, _ = pair(PLAIN | {"dropout_p": 0.3})
    assert model.dropout.p == 0
    block = model.encoder.layers[0]
    assert (block.self_attention.dropout.p, block.self_attention.sublayer.dropout, block.feed_forward.dropout.p) == (0.3, 0.3, 0.3)
    assert block.feed_forward.sublayer.dropout.p == 0
