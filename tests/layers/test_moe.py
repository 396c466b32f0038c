"""A mixture of experts against transformers' blocks, and against loops over tokens where those have no such option."""

import math

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, Qwen2MoeConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from modelzoo.layers import (
    Experts,
    MixtureOfExperts,
    Router,
    Routing,
    SharedExpert,
    load_balancing_loss,
    recorded_routing,
)

D, F, E = 12, 10, 6
X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(0))


def mixture(top_k=2, *, shared=None, is_normalized=True, capacity_factor=None, activation="silu"):
    router = Router(D, E, top_k, is_normalized=is_normalized)
    return MixtureOfExperts(router, Experts(E, D, F, activation=activation), shared, capacity_factor=capacity_factor)


def drawn(module, std=0.4):
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def copy_routed(theirs, ours):
    with torch.no_grad():
        ours.router.weight.copy_(theirs.gate.weight)
        gate, up = theirs.experts.gate_up_proj.chunk(2, dim=1)
        for mine, other in ((ours.experts.gate, gate), (ours.experts.up, up), (ours.experts.down, theirs.experts.down_proj)):
            mine.copy_(other)


def assert_equal_with_gradients(ours, theirs):
    ours_in, theirs_in = X.clone().requires_grad_(), X.clone().requires_grad_()
    mine, other = ours(ours_in), theirs(theirs_in)
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    mine.pow(3).mean().backward()
    other.pow(3).mean().backward()
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, rtol=1e-5, atol=1e-5)
    fused = torch.cat([ours.experts.gate.grad, ours.experts.up.grad], dim=1)
    torch.testing.assert_close(fused, theirs.experts.gate_up_proj.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.experts.down.grad, theirs.experts.down_proj.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.router.weight.grad, theirs.gate.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("top_k", [1, 2, 6])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_mixture_equals_mixtrals(top_k, activation):
    config = MixtralConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=top_k, hidden_act=activation
    )
    theirs, ours = drawn(MixtralSparseMoeBlock(config)), mixture(top_k, activation=activation)
    copy_routed(theirs, ours)
    assert_equal_with_gradients(ours, theirs)


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_a_mixture_with_a_shared_expert_equals_qwens(top_k, is_normalized):
    config = Qwen2MoeConfig(
        hidden_size=D,
        moe_intermediate_size=F,
        shared_expert_intermediate_size=8,
        num_experts=E,
        num_experts_per_tok=top_k,
        norm_topk_prob=is_normalized,
    )
    theirs = drawn(Qwen2MoeSparseMoeBlock(config))
    ours = mixture(top_k, shared=SharedExpert(D, 8), is_normalized=is_normalized)
    copy_routed(theirs, ours)
    network = ours.shared.feed_forward
    pairs = [(ours.shared.gate, theirs.shared_expert_gate)]
    pairs += [(getattr(network, name), getattr(theirs.shared_expert, f"{name}_proj")) for name in ("gate", "up", "down")]
    with torch.no_grad():
        for mine, other in pairs:
            mine.weight.copy_(other.weight)
    assert_equal_with_gradients(ours, theirs)
    for mine, other in pairs:
        torch.testing.assert_close(mine.weight.grad, other.weight.grad, rtol=1e-5, atol=1e-5)


def naive_with_capacity(layer, x, capacity):
    """First choices of all tokens, then second ones; each expert takes the first `capacity` that come."""
    routing = layer.router(x)
    taken, output = [0] * E, torch.zeros_like(x)
    for choice in range(routing.experts.shape[1]):
        for token in range(len(x)):
            expert = int(routing.experts[token, choice])
            if taken[expert] < capacity:
                taken[expert] += 1
                alone = layer.experts(x[token : token + 1], [int(index == expert) for index in range(E)])
                output[token] += routing.weights[token, choice] * alone[0]
    return output, sum(taken)


@pytest.mark.parametrize("capacity_factor", [0.1, 0.5, 1.0, 1.25, 6.0])
def test_a_capacity_keeps_first_choices_and_earlier_tokens_in_training(capacity_factor):
    layer = drawn(mixture(2, capacity_factor=capacity_factor)).train()
    x = X.flatten(0, 1)
    expected, kept = naive_with_capacity(layer, x, math.ceil(capacity_factor * len(x) * 2 / E))
    assert (kept < len(x) * 2) == (capacity_factor <= 1)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)


def test_a_capacity_drops_nothing_in_evaluation():
    limited, free = (drawn(mixture(2, capacity_factor=factor)).eval() for factor in (0.1, None))
    assert torch.equal(limited(X), free(X))


def test_a_token_becomes_the_same_in_every_batch():
    layer = drawn(mixture()).eval()
    together = layer(X.flatten(0, 1))
    alone = torch.cat([layer(row.unsqueeze(0)) for row in X.flatten(0, 1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_an_expert_without_rows_gets_a_gradient_of_zeros():
    layer = drawn(mixture(1))
    layer(X[:1, :1]).sum().backward()
    used = layer.experts.gate.grad.flatten(1).any(1)
    assert int(used.sum()) == 1
    assert layer.experts.gate.grad.shape == layer.experts.gate.shape


def test_no_tokens_give_no_tokens():
    assert mixture()(torch.zeros(0, D)).shape == (0, D)


def test_half_precision_is_routed_in_float32():
    router = drawn(Router(D, E, 2)).bfloat16()
    routing = router(X.flatten(0, 1).bfloat16())
    assert routing.probabilities.dtype == torch.float32
    assert routing.weights.dtype == torch.bfloat16


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_the_loss_of_balance_equals_transformers_with_and_without_padding(top_k):
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(3 * 7, E, generator=generator, requires_grad=True) for _ in range(2)]
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    mask[2, 1:] = 0
    for given in (None, mask):
        rows = torch.arange(21) if given is None else given.flatten().nonzero().squeeze(1)
        routings = []
        for each in logits:
            probabilities = each[rows].softmax(-1)
            weights, experts = probabilities.topk(top_k)
            routings.append(Routing(experts, weights, probabilities))
        mine, other = load_balancing_loss(routings), load_balancing_loss_func(tuple(logits), E, top_k, given)
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
        for ours, theirs in zip(torch.autograd.grad(mine, logits), torch.autograd.grad(other, logits), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_even_use_of_experts_gives_k():
    probabilities = torch.full((E, E), 1 / E)
    experts = torch.stack([torch.arange(E), (torch.arange(E) + 1) % E], dim=1)
    assert float(load_balancing_loss([Routing(experts, probabilities[:, :2], probabilities)])) == pytest.approx(2.0)


def test_decisions_are_recorded_inside_the_block_only_and_in_order():
    layers = nn.Sequential(drawn(mixture()), drawn(mixture(), std=0.3))
    with recorded_routing(layers) as found:
        layers(X)
    assert len(found) == 2
    assert torch.equal(found[0].experts, layers[0].router(X.flatten(0, 1)).experts)
    layers(X)
    assert len(found) == 2


def test_recomputing_a_layer_in_the_backward_pass_records_nothing_and_changes_no_gradient():
    from torch.utils.checkpoint import checkpoint

    layer = drawn(mixture())

    def gradients(run):
        layer.zero_grad()
        x = X.clone().requires_grad_()
        with recorded_routing(layer) as found:
            output = run(x)
        (output.sum() + load_balancing_loss(found)).backward()
        assert len(found) == 1
        return [x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]

    plain, recomputed = gradients(layer), gradients(lambda x: checkpoint(layer, x, use_reentrant=False))
    assert all(torch.equal(one, other) for one, other in zip(plain, recomputed, strict=True))


def test_every_parameter_of_the_experts_can_be_cut_at_the_declared_dimension():
    experts = Experts(E, D, F)
    assert all(parameter.shape[experts.expert_dim] == E for parameter in experts.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Router(D, E, 7), "top_k=7 must lie in 1 to num_experts=6"),
        (lambda: Router(D, E, 0), "top_k=0 must lie in 1 to num_experts=6"),
        (lambda: MixtureOfExperts(Router(D, 5, 2), Experts(E, D, F)), "the router chooses from 5 experts, but there are 6"),
        (lambda: mixture(capacity_factor=0.0), r"capacity_factor=0\.0 must be above 0"),
    ],
)
def test_numbers_that_do_not_fit_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
