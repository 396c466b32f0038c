import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modelzoo.layers import Attention, FeedForward, Linear

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_torch(bias):
    theirs, ours = nn.Linear(8, 6, bias=bias), Linear(8, 6, bias)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(X), theirs(X))


@pytest.mark.parametrize("bias", [True, False])
def test_scale_multiplies_the_product_and_not_the_bias(bias):
    layer = Linear(8, 6, bias, scale=8**-0.5)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    expected = F.linear(X / 8**0.5, layer.weight, layer.bias)
    torch.testing.assert_close(layer(X), expected, rtol=1e-6, atol=1e-6)


def test_fresh_values_have_the_standard_deviation_asked_for():
    layer = Linear(300, 300)
    layer.init_weights(0.05)
    assert abs(layer.weight.std().item() - 0.05) < 0.001
    assert torch.equal(layer.bias, torch.zeros(300))


def test_every_map_of_a_block_says_how_it_may_be_split():
    attention, feed_forward = Attention(8, 2), FeedForward(8, 16, is_gated=True)
    split = {name: module.tensor_split for name, module in attention.named_children()}
    assert split == {"query": "column", "key": "column", "value": "column", "output": "row"}
    assert (feed_forward.gate.tensor_split, feed_forward.up.tensor_split, feed_forward.down.tensor_split) == (
        "column",
        "column",
        "row",
    )
    assert Linear(4, 4).tensor_split is None


def test_print_shows_widths_bias_and_scale():
    assert repr(Linear(8, 6, False, scale=0.25)) == "Linear(8, 6, bias=False, scale=0.25)"
