import pickle

import pytest
import torch
from transformers.activations import ACT2FN

from modelzoo.errors import ConfigError
from modelzoo.layers import ACTIVATIONS, activation

SHARED = sorted(set(ACTIVATIONS) & set(ACT2FN))


def test_every_activation_is_one_of_transformers():
    assert sorted(ACTIVATIONS) == SHARED


@pytest.mark.parametrize("name", SHARED)
def test_activation_and_its_gradient_equal_transformers(name):
    ours = torch.linspace(-12, 12, 997, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    mine, other = activation(name)(ours), ACT2FN[name](theirs)
    torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    mine.sum().backward()
    other.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHARED)
def test_activation_can_be_sent_to_another_process(name):
    assert pickle.loads(pickle.dumps(activation(name))) is activation(name)


def test_misspelt_activation_is_named_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"activation='gelu_now' is not known; did you mean gelu_new\?.*quick_gelu"):
        activation("gelu_now")


def test_unknown_activation_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"activation='zzz' is not known; use one of.*gelu, gelu_10"):
        activation("zzz")
