"""GLM-10B against a naive model: blanks at the positions of their masks, the text seen whole; decoding into a blank."""

import pytest
import torch
from naive_cpm import Weights, draw, stack, visible
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.glm_10b import GLM10B, GLM10BConfig
from modelzoo.models.glm_10b_blanks import blank_positions

START, END, MASKED = 36, 37, 38
PLAIN = {
    "vocab_size": 40, "dim_model": 16, "num_heads": 4, "dim_head": 6, "dim_ff": 24, "num_layers": 2, "norm_eps": 1e-5,
    "position_size": 30, "attn_scale": True, "length_scale": False, "ffn_activate_fn": "gelu", "dropout_p": 0.0,
    "sop_tok_id": START, "eop_tok_id": END, "mask_tok_id": MASKED,
}  # fmt: skip
VARIANTS = {"as published": {}, "gated": {"ffn_activate_fn": "gated_gelu", "attn_scale": False}, "rms": {"norm_bias": False}}
IDS = torch.tensor([[5, MASKED, 6, 7, MASKED, START, 8, 9, START, 10, 11], [3, 4, MASKED, 5, START, 6, 7, 8, 0, 0, 0]])
MASK = torch.tensor([[1] * 11, [1] * 8 + [0] * 3])
TEXT = [[0, 1, 2, 3, 4, 1, 1, 1, 4, 4, 4], [0, 1, 2, 3, 2, 2, 2, 2]]
BLANK = [[0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3], [0, 0, 0, 0, 1, 2, 3, 4]]


def naive(weights: Weights, config: dict, ids: Tensor, text: list[int], blank: list[int]) -> Tensor:
    """(T, V) logits of one row without padding."""
    table = weights["input_embedding.weight"]
    hidden = table[ids] + weights["position_embedding.weight"][text] + weights["block_position_embedding.weight"][blank]
    context = torch.tensor([place == 0 for place in blank])
    return stack(weights, "encoder", hidden, config, visible(len(ids), context), None) @ table.T


def pair(config: dict) -> tuple[GLM10B, dict[str, Tensor]]:
    converter = converter_for("glm-10b")
    model = GLM10B(GLM10BConfig(**converter.read_config(config)), "causal_lm").eval()
    mapping = converter.weights("causal_lm", values=model.config.values())
    weights = draw({name: tuple(each.shape) for name, each in mapping.to_theirs(model.state_dict()).items()}, 0.2)
    model.load_state_dict(mapping.to_ours(weights))
    return model, weights


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_the_naive_model(variant):
    config = PLAIN | VARIANTS[variant]
    model, weights = pair(config)
    found = model(IDS, MASK).logits
    total, expected_total = 0, 0
    for row, length in enumerate((11, 8)):
        expected = naive(weights, config, IDS[row, :length], TEXT[row], BLANK[row])
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-5, atol=1e-5)
        total, expected_total = total + found[row, :length].square().mean(), expected_total + expected.square().mean()
    total.backward()
    expected_total.backward()
    mapping = converter_for("glm-10b").weights("causal_lm", values=model.config.values())
    gradients = mapping.to_theirs({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, weights[name].grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_blanks_are_found_with_padding_on_either_side():
    for ids, mask in ((IDS, MASK), (IDS.roll(3, 1), MASK.roll(3, 1))):
        found = blank_positions(ids[1:], mask[1:].bool(), start_token_id=START, mask_token_id=MASKED)
        real = mask[1].bool()
        assert found.text[0, real].tolist() == TEXT[1]
        assert found.blank[0, real].tolist() == BLANK[1]
        assert found.is_text[0, real].tolist() == [place == 0 for place in BLANK[1]]
    whole = blank_positions(IDS[:1], MASK[:1].bool(), start_token_id=START, mask_token_id=MASKED)
    assert (whole.text.tolist(), whole.blank.tolist()) == ([TEXT[0]], [BLANK[0]])


@torch.no_grad()
def test_given_positions_take_the_place_of_found_ones():
    model, _ = pair(PLAIN)
    given = {"position_ids": torch.tensor(TEXT[:1]), "block_position_ids": torch.tensor(BLANK[:1])}
    assert torch.equal(model(IDS[:1]).logits, model(IDS[:1], **given).logits)
    other = model(IDS[:1], **given | {"block_position_ids": given["block_position_ids"] * 2}).logits
    assert not torch.equal(model(IDS[:1]).logits, other)


@torch.no_grad()
def test_only_blanks_are_scored():
    model, weights = pair(PLAIN)
    expected = []
    for row, length in enumerate((11, 8)):
        scores = torch.log_softmax(naive(weights, PLAIN, IDS[row, :length], TEXT[row], BLANK[row]), -1)
        expected += [-scores[at - 1, IDS[row, at]] for at in range(1, length) if BLANK[row][at]]
    labels = IDS.masked_fill(MASK == 0, -100)
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(IDS, MASK, labels=labels).loss, torch.stack(expected).mean())


@torch.no_grad()
def test_decoding_with_caches_equals_the_full_forward_at_every_step():
    model, _ = pair(PLAIN)
    ids = torch.tensor([[0, 0, 5, MASKED, 6, START], [5, MASKED, 7, MASKED, START, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    logits, state = model.prefill(ids, mask, max_new_tokens=5)
    written = ids[:, :0]
    for step in range(5):
        full = model(torch.cat([ids, written], 1), torch.cat([mask, torch.ones_like(written)], 1)).logits[:, -1]
        torch.testing.assert_close(logits, full, rtol=0, atol=1e-5)
        token = logits[:, :36].topk(2).indices[:, step % 2]
        written = torch.cat([written, token.unsqueeze(1)], 1)
        logits = model.decode(token, state)
    state.reorder(torch.tensor([1, 0]))
    assert state.blank.tolist() == [7, 6]


def test_prompts_without_a_place_to_write_are_refused():
    model, _ = pair(PLAIN)
    with pytest.raises(DataError, match="row 0 has a start token 36 and before it no mask token 38"):
        model(torch.tensor([[5, START, 6]]))
    with pytest.raises(DataError, match="row 1 has no start token 36, after which a blank is written"):
        model.prefill(torch.tensor([[MASKED, START], [MASKED, 5]]), None, 2)
    with pytest.raises(DataError, match="padding stands after a token"):
        model.prefill(torch.tensor([[MASKED, START, 0]]), torch.tensor([[1, 1, 0]]), 2)
    with pytest.raises(DataError, match=r"limit 30 \(30 places in a blank\)"):
        model.prefill(torch.tensor([[MASKED, START]]), None, 29)
    with pytest.raises(DataError, match="31 tokens, limit 30"):
        model(torch.ones(1, 31, dtype=torch.long))
    with pytest.raises(DataError, match="block_position_ids: -1 is not in 0 to 29"):
        model(IDS, position_ids=torch.zeros_like(IDS), block_position_ids=torch.full_like(IDS, -1))


def test_defaults_are_modelcenters_and_others_are_refused():
    converter = converter_for("glm-10b")
    assert GLM10BConfig(**converter.read_config({})).values() == GLM10BConfig().values()
    with pytest.raises(ConfigError, match="length_scale: expected false or null, found true"):
        converter.read_config({"length_scale": True})
    with pytest.raises(ConfigError, match="tie_word_embeddings=False is not built for GLM-10B"):
        GLM10BConfig(tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="length_scale=True is not built for GLM-10B"):
        GLM10BConfig(length_scale=True)
