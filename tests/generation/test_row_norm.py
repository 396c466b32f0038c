"""RMS norms of few rows: the layer's result within rounding, and the layer itself where they do not apply."""

import pytest
import torch
from torch import nn

from modelzoo.generation import prepacked
from modelzoo.generation.row_norm import row_norm
from modelzoo.layers import RMSNorm


def norm(eps=1e-5):
    torch.manual_seed(0)
    layer = RMSNorm(48, eps)
    nn.init.normal_(layer.weight)
    return layer


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(1, 1, 48), (8, 1, 48), (2, 1, 4, 48)])
def test_the_result_is_the_layers(eps, size, shape):
    layer, hidden = norm(eps), size * torch.randn(shape)
    before = hidden.clone()
    with torch.no_grad(), prepacked(layer):
        assert "forward" in vars(layer)
        torch.testing.assert_close(layer(hidden), RMSNorm.forward(layer, hidden), rtol=2e-6, atol=1e-7)
    assert "forward" not in vars(layer)
    assert torch.equal(hidden, before)


@pytest.mark.parametrize("why", ["gradients", "many rows", "float64", "changed"])
def test_where_it_does_not_apply_the_layer_runs(why):
    layer, hidden = norm(), torch.randn(65 if why == "many rows" else 1, 48)
    called = []
    found = row_norm(layer, lambda hidden: called.append(hidden))
    with torch.set_grad_enabled(why == "gradients"):
        if why == "changed":
            layer.weight.mul_(2)
        found(hidden.double() if why == "float64" else hidden)
    assert called


def test_other_weights_are_left_alone():
    layer = norm().half()
    with prepacked(layer):
        assert "forward" not in vars(layer)
