import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_llama

from modelzoo.layers import Layout, RotaryEmbedding, RotaryScaling
from modelzoo.layers.rotary import apply_rotary

HEADS = torch.randn(2, 9, 3, 16, generator=torch.Generator().manual_seed(0))
PLACES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 100, 101, 102, 900, 901, 2047]])


def llama(**rope) -> LlamaConfig:
    values = {"rope_type": "default", "rope_theta": 10000.0} | rope
    return LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16, max_position_embeddings=64, rope_parameters=values)


def assert_close(mine, other):
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_half_split_equals_llama(theta):
    theirs = LlamaRotaryEmbedding(llama(rope_theta=theta))
    expected, _ = apply_llama(HEADS, HEADS, *theirs(HEADS, PLACES), unsqueeze_dim=2)
    assert_close(apply_rotary(HEADS, RotaryEmbedding(16, theta=theta).table(PLACES)), expected)


@pytest.mark.parametrize("rotary_size", [16, 8, 2])
def test_interleaved_and_partial_equal_gptj(rotary_size):
    sin, cos = modeling_gptj.create_sinusoidal_positions(2048, rotary_size)[PLACES].chunk(2, -1)
    turned = modeling_gptj.apply_rotary_pos_emb(HEADS[..., :rotary_size], sin, cos)
    table = RotaryEmbedding(16, rotary_size=rotary_size, is_interleaved=True).table(PLACES)
    assert_close(apply_rotary(HEADS, table), torch.cat([turned, HEADS[..., rotary_size:]], -1))


def test_partial_half_split_turns_the_leading_dimensions():
    expected = apply_rotary(HEADS[..., :6], RotaryEmbedding(6).table(PLACES))
    found = apply_rotary(HEADS, RotaryEmbedding(16, rotary_size=6).table(PLACES))
    assert torch.equal(found, torch.cat([expected, HEADS[..., 6:]], -1))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
SCALINGS = [
    ({"rope_type": "linear", "factor": 3.0}, RotaryScaling(kind="linear", factor=3.0)),
    (YARN, RotaryScaling(kind="yarn", factor=4.0, original_max_positions=64)),
    (
        YARN | {"beta_fast": 4.0, "beta_slow": 2.0},
        RotaryScaling(kind="yarn", factor=4.0, original_max_positions=64, beta_fast=4.0, beta_slow=2.0),
    ),
    (YARN | {"attention_factor": 1.7}, RotaryScaling(kind="yarn", factor=4.0, original_max_positions=64, attention_factor=1.7)),
    (
        LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        RotaryScaling(kind="llama3", factor=8.0, original_max_positions=64),
    ),
    (
        LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 8.0},
        RotaryScaling(kind="llama3", factor=8.0, original_max_positions=64, low_frequency_factor=2.0, high_frequency_factor=8.0),
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), SCALINGS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_scaled_frequencies_equal_transformers(theirs, ours, theta):
    expected, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](llama(rope_theta=theta, **theirs), "cpu")
    layer = RotaryEmbedding(16, theta=theta, scaling=ours)
    torch.testing.assert_close(layer.inverse_frequencies, expected, rtol=1e-6, atol=0)
    phases = PLACES[..., None].float() * expected
    table = layer.table(PLACES)
    torch.testing.assert_close(table.cos.squeeze(-2)[..., 8:], phases.cos() * factor, rtol=0, atol=2e-4)
    torch.testing.assert_close(table.sin.squeeze(-2)[..., 8:], phases.sin() * factor, rtol=0, atol=2e-4)


@pytest.mark.parametrize("length", [1, 64, 65, 100, 1000])
def test_dynamic_frequencies_equal_transformers_at_every_length(length):
    config = llama(rope_type="dynamic", factor=2.0)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
    layer = RotaryEmbedding(16, scaling=RotaryScaling(kind="dynamic", factor=2.0, original_max_positions=64))
    places = torch.arange(length)
    found = layer.table(places).cos.squeeze(-2)[..., 8:]
    torch.testing.assert_close(found, (places[:, None] * expected).cos(), rtol=0, atol=2e-4)


def test_dynamic_queries_and_keys_turn_at_one_speed():
    # A selected first token stands at position 0 alone, and its keys reach far beyond the trained length.
    layer = RotaryEmbedding(16, scaling=RotaryScaling(kind="dynamic", factor=2.0, original_max_positions=4))
    key = Layout.dense(1, 9)
    query = Layout.dense(1, 1, positions=torch.tensor([[3]]))
    place = layer(query, key)
    torch.testing.assert_close(place.query_rotary.cos[0, 0], place.key_rotary.cos[0, 3], rtol=0, atol=0)


def test_phases_are_float32_whatever_the_model_is():
    # The angle of position 2047 needs 11 bits before the point; half precision has 8 or 11 in all.
    for dtype in (torch.float16, torch.bfloat16):
        layer = RotaryEmbedding(16).to(dtype)
        table = layer.table(PLACES)
        assert table.cos.dtype == table.sin.dtype == torch.float32
        assert torch.equal(table.sin, RotaryEmbedding(16).table(PLACES).sin)
        assert apply_rotary(HEADS.to(dtype), table).dtype == dtype


def test_turning_keeps_the_length_and_depends_on_the_distance_alone():
    table = RotaryEmbedding(16).table(torch.arange(20))
    q, k = HEADS[0, 0, 0], HEADS[0, 0, 1]
    turned_q, turned_k = (apply_rotary(each.expand(20, 1, 16), table).squeeze(1) for each in (q, k))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(20), rtol=1e-5, atol=0)
    scores = turned_q @ turned_k.T
    for distance in (0, 3, -5):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", [None, *(ours for _, ours in SCALINGS)])
def test_frequencies_are_right_again_after_a_build_without_memory(scaling):
    with torch.device("meta"):
        layer = nn.Sequential(RotaryEmbedding(16, scaling=scaling))
    assert layer[0].inverse_frequencies.is_meta
    layer.to_empty(device="cpu")
    layer[0].init_weights()
    assert torch.equal(layer[0].inverse_frequencies, RotaryEmbedding(16, scaling=scaling).inverse_frequencies)
    assert "0.inverse_frequencies" not in layer.state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotary_size": 7}, "rotary_size=7 must be even and at most head_size=16"),
        ({"rotary_size": 18}, "rotary_size=18 must be even and at most head_size=16"),
        ({"rotary_size": 0}, "rotary_size=0 must be even and at most head_size=16"),
        ({"theta": 1.0}, "theta=1.0 must be greater than 1"),
        (
            {"rotary_size": 2, "scaling": RotaryScaling(kind="dynamic", factor=2.0, original_max_positions=8)},
            "rotary_size=2 is too small for dynamic scaling",
        ),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(16, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "linar", "factor": 2.0}, "kind='linar' is not known; use linear, dynamic, yarn or llama3"),
        ({"kind": "linear", "factor": 0.5}, "factor=0.5 must be at least 1"),
        ({"kind": "yarn", "factor": 2.0}, "kind='yarn' needs original_max_positions, got 0"),
        (
            {"kind": "llama3", "factor": 2.0, "original_max_positions": 8, "low_frequency_factor": 4.0},
            "high_frequency_factor=4.0 must be greater than low_frequency_factor=4.0",
        ),
    ],
)
def test_impossible_scaling_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**arguments)


def test_print_shows_size_theta_and_scaling():
    scaling = RotaryScaling(kind="linear", factor=4.0)
    assert (
        repr(RotaryEmbedding(16, rotary_size=8, is_interleaved=True, scaling=scaling))
        == "RotaryEmbedding(8, theta=10000, interleaved, linear x4)"
    )
    assert math.isclose(RotaryEmbedding(4).inverse_frequencies[1].item(), 0.01, rel_tol=1e-6)
