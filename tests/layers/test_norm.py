import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from modelzoo.layers import LayerNorm, RMSNorm

X = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def gradients(layer, x):
    x = x.clone().requires_grad_()
    layer(x).pow(3).sum().backward()
    return [x.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 1e-12])
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_layer_norm_equals_torch(bias, eps, spread):
    theirs, ours = nn.LayerNorm(16, eps, bias=bias), LayerNorm(16, eps, bias=bias)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(X * spread), theirs(X * spread))
    for mine, other in zip(gradients(ours, X * spread), gradients(theirs, X * spread), strict=True):
        assert torch.equal(mine, other)


def test_layer_norm_without_parameters_equals_torch():
    theirs, ours = nn.LayerNorm(16, elementwise_affine=False), LayerNorm(16, elementwise_affine=False)
    assert not list(ours.parameters())
    assert torch.equal(ours(X), theirs(X))
    assert torch.equal(*(gradients(layer, X)[0] for layer in (ours, theirs)))
    assert str(ours) == "LayerNorm(16, eps=1e-05, elementwise_affine=False)"


@pytest.mark.parametrize("reference", [T5LayerNorm, LlamaRMSNorm])
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_rms_norm_equals_transformers(reference, spread):
    theirs, ours = reference(16, eps=1e-5), RMSNorm(16, 1e-5)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X * spread), theirs(X * spread), rtol=1e-6, atol=1e-6)
    for mine, other in zip(gradients(ours, X * spread), gradients(theirs, X * spread), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_of_half_precision_runs_in_float32(dtype):
    # 300 squared overflows float16, and eight bits of bfloat16 lose the mean.
    x = (X * 300).to(dtype)
    theirs, ours = LlamaRMSNorm(16, eps=1e-6).to(dtype), RMSNorm(16, 1e-6).to(dtype)
    assert ours(x).dtype == dtype
    assert torch.equal(ours(x), theirs(x))
    assert ours(x).isfinite().all()


def test_rms_norm_of_double_precision_stays_double():
    layer = RMSNorm(4).double()
    nn.init.normal_(layer.weight)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


@pytest.mark.parametrize("layer", [LayerNorm(16), RMSNorm(16)])
def test_fresh_norms_only_normalise(layer):
    layer.init_weights(0.5)
    assert torch.equal(layer.weight, torch.ones(16))
    assert getattr(layer, "bias", None) is None or torch.equal(layer.bias, torch.zeros(16))


def test_print_shows_width_and_epsilon():
    assert repr(LayerNorm(16, 1e-12, bias=False)) == "LayerNorm(16, eps=1e-12, bias=False)"
    assert repr(RMSNorm(16, 1e-6)) == "RMSNorm(16, eps=1e-06)"
