import pytest
import torch
from naive_attention import fill

from modelzoo.errors import ConfigError
from modelzoo.layers import FeedForward, activation

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("output_size", [None, 5])
def test_plain_equals_naive(bias, name, output_size):
    layer = fill(FeedForward(8, 16, activation=name, bias=bias, output_size=output_size))

    up_bias, down_bias = (0.0, 0.0) if not bias else (layer.up.bias, layer.down.bias)
    expected = activation(name)(X @ layer.up.weight.T + up_bias) @ layer.down.weight.T + down_bias
    torch.testing.assert_close(layer(X), expected, rtol=1e-5, atol=1e-5)
    assert layer(X).shape[-1] == (output_size or 8)


@pytest.mark.parametrize("bias", [True, False])
def test_gated_equals_naive(bias):
    layer = fill(FeedForward(8, 16, activation="silu", is_gated=True, bias=bias))
    expected = layer.down(torch.nn.functional.silu(layer.gate(X)) * layer.up(X))
    torch.testing.assert_close(layer(X), expected, rtol=1e-6, atol=1e-6)
    assert (layer.gate.bias is not None) == bias


def test_inner_dropout_acts_between_the_maps_and_in_training_alone():
    layer = fill(FeedForward(8, 16, dropout=0.5))
    plain = layer.eval()(X)
    layer.dropout = torch.nn.Identity()
    assert torch.equal(plain, layer(X))
    dropped = fill(FeedForward(8, 4096, activation="linear", dropout=0.5)).train()
    torch.manual_seed(0)
    inner = []
    dropped.down.register_forward_pre_hook(lambda _, given: inner.append(given[0]))
    dropped(X)
    assert abs((inner[0] == 0).float().mean().item() - 0.5) < 0.02


def test_unknown_activation_is_refused():
    with pytest.raises(ConfigError, match="activation='gellu'"):
        FeedForward(8, 16, activation="gellu")


def test_print_shows_the_activation():
    assert "activation=relu" in repr(FeedForward(8, 16, activation="relu"))
