"""For each constructor option of each layer, two values of it give two results: no option is taken and ignored."""

import inspect

import pytest
import torch
from naive_attention import fill
from torch import nn

from modelzoo import layers
from modelzoo.layers import (
    AlibiBias,
    Attention,
    CrossAttentionBlock,
    Decoder,
    Dropout,
    Embedding,
    Encoder,
    Experts,
    FeedForward,
    FeedForwardBlock,
    KeyValueCache,
    LayerNorm,
    Layout,
    LearnedPositionEmbedding,
    Linear,
    MixtureOfExperts,
    ParallelBlock,
    RelativePositionBias,
    RMSNorm,
    RotaryEmbedding,
    RotaryScaling,
    Router,
    SegmentPositionBias,
    SelfAttentionBlock,
    SharedExpert,
    TransformerBlock,
)

X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
LAYOUT = Layout.dense(2, 5)
LONG = Layout.dense(1, 60)


def attention(**options):
    return Attention(12, options.pop("num_heads", 4), **options)


def block(**options):
    cross = options.pop("cross_attention", None)
    own = options.pop("self_attention", None) or SelfAttentionBlock(attention(), LayerNorm(12))
    feed_forward = options.pop("feed_forward", None) or FeedForwardBlock(FeedForward(12, 16), LayerNorm(12))
    return TransformerBlock(own, feed_forward, cross)


def deep(stack, count=1, norm=None, position=None):
    return stack([block() for _ in range(count)], norm, position)


def residual(kind):
    sublayer = (lambda: FeedForward(12, 16)) if kind is FeedForwardBlock else attention
    other = (lambda: FeedForward(12, 16, activation="relu")) if kind is FeedForwardBlock else lambda: attention(num_heads=2)
    name = "sublayer"
    build = lambda sub=None, norm=None, **options: kind(sub or sublayer(), norm or LayerNorm(12), **options)  # noqa: E731  # a row of the table
    return {
        name: (build, {}, {"sub": other()}),
        "norm": (build, {}, {"norm": RMSNorm(12)}),
        "norm_position": (build, {}, {"norm_position": "post"}),
        "dropout": (build, {}, {"dropout": 0.5}),
        "residual_scale": (build, {}, {"residual_scale": 0.5}),
        "sum_scale": (build, {}, {"sum_scale": 0.5}),
    }


def parallel(sub=None, feed_forward=None, norm=None, **options):
    return ParallelBlock(sub or attention(), feed_forward or FeedForward(12, 16), norm or LayerNorm(12), **options)


def mixture(router=None, experts=None, shared=None, **options):
    return MixtureOfExperts(router or Router(12, 3, 2), experts or Experts(3, 12, 16), shared, **options)


def plain(kind, *sizes):
    return lambda **options: kind(*options.pop("sizes", sizes), **options)


SCALING = RotaryScaling(kind="linear", factor=2.0)
YARN = {"kind": "yarn", "factor": 4.0, "original_max_positions": 2000}
LLAMA3 = {"kind": "llama3", "factor": 4.0, "original_max_positions": 16}


def scaled(**options):
    return RotaryEmbedding(12, scaling=RotaryScaling(**({"kind": "linear", "factor": 2.0} | options)))


ROWS = {
    Linear: {
        "in_features": (plain(Linear, 12, 6), {}, {"sizes": (5, 6)}),
        "out_features": (plain(Linear, 12, 6), {}, {"sizes": (12, 7)}),
        "bias": (plain(Linear, 12, 6), {}, {"bias": False}),
        "scale": (plain(Linear, 12, 6), {}, {"scale": 0.5}),
        "tensor_split": (plain(Linear, 12, 6), {}, {"tensor_split": "row"}),
    },
    Embedding: {
        "num_embeddings": (plain(Embedding, 9, 6), {}, {"sizes": (5, 6)}),
        "embedding_dim": (plain(Embedding, 9, 6), {}, {"sizes": (9, 7)}),
        "padding_idx": (plain(Embedding, 9, 6), {}, {"padding_idx": 1}),
        "scale": (plain(Embedding, 9, 6), {}, {"scale": 0.5}),
        "tensor_split": (plain(Embedding, 9, 6), {}, {"tensor_split": None}),
    },
    LearnedPositionEmbedding: {
        "num_embeddings": (plain(LearnedPositionEmbedding, 9, 6), {}, {"sizes": (5, 6)}),
        "embedding_dim": (plain(LearnedPositionEmbedding, 9, 6), {}, {"sizes": (9, 7)}),
        "padding_idx": (plain(LearnedPositionEmbedding, 9, 6), {}, {"padding_idx": 1}),
        "offset": (plain(LearnedPositionEmbedding, 9, 6), {}, {"offset": 2}),
    },
    LayerNorm: {
        "hidden_size": (plain(LayerNorm, 12), {}, {"sizes": (5,)}),
        "eps": (plain(LayerNorm, 12), {}, {"eps": 0.1}),
        "bias": (plain(LayerNorm, 12), {}, {"bias": False}),
        "elementwise_affine": (plain(LayerNorm, 12), {"bias": False}, {"bias": False, "elementwise_affine": False}),
    },
    RMSNorm: {
        "hidden_size": (plain(RMSNorm, 12), {}, {"sizes": (5,)}),
        "eps": (plain(RMSNorm, 12), {}, {"eps": 0.1}),
    },
    Dropout: {"p": (plain(Dropout), {}, {"p": 0.5})},
    FeedForward: {
        "hidden_size": (plain(FeedForward, 12, 16), {}, {"sizes": (5, 16)}),
        "intermediate_size": (plain(FeedForward, 12, 16), {}, {"sizes": (12, 8)}),
        "activation": (plain(FeedForward, 12, 16), {}, {"activation": "relu"}),
        "is_gated": (plain(FeedForward, 12, 16), {}, {"is_gated": True}),
        "bias": (plain(FeedForward, 12, 16), {}, {"bias": False}),
        "dropout": (plain(FeedForward, 12, 16), {}, {"dropout": 0.5}),
        "output_size": (plain(FeedForward, 12, 16), {}, {"output_size": 5}),
        "length_scale": (plain(FeedForward, 12, 16), {}, {"length_scale": True}),
    },
    Router: {
        "hidden_size": (plain(Router, 12, 3, 2), {}, {"sizes": (5, 3, 2)}),
        "num_experts": (plain(Router, 12, 3, 2), {}, {"sizes": (12, 4, 2)}),
        "top_k": (plain(Router, 12, 3, 2), {}, {"sizes": (12, 3, 1)}),
        "is_normalized": (plain(Router, 12, 3, 2), {}, {"is_normalized": False}),
    },
    Experts: {
        "num_experts": (plain(Experts, 3, 12, 16), {}, {"sizes": (5, 12, 16)}),
        "hidden_size": (plain(Experts, 3, 12, 16), {}, {"sizes": (3, 5, 16)}),
        "intermediate_size": (plain(Experts, 3, 12, 16), {}, {"sizes": (3, 12, 8)}),
        "activation": (plain(Experts, 3, 12, 16), {}, {"activation": "relu"}),
    },
    SharedExpert: {
        "hidden_size": (plain(SharedExpert, 12, 16), {}, {"sizes": (5, 16)}),
        "intermediate_size": (plain(SharedExpert, 12, 16), {}, {"sizes": (12, 8)}),
        "activation": (plain(SharedExpert, 12, 16), {}, {"activation": "relu"}),
    },
    MixtureOfExperts: {
        "router": (mixture, {}, {"router": Router(12, 3, 1)}),
        "experts": (mixture, {}, {"experts": Experts(3, 12, 8)}),
        "shared": (mixture, {}, {"shared": SharedExpert(12, 16)}),
        "capacity_factor": (mixture, {}, {"capacity_factor": 0.5}),
    },
    Attention: {
        "hidden_size": (plain(Attention, 12, 4), {}, {"sizes": (8, 4)}),
        "num_heads": (attention, {}, {"num_heads": 2}),
        "num_key_value_heads": (attention, {}, {"num_key_value_heads": 2}),
        "head_size": (attention, {}, {"head_size": 5}),
        "context_size": (attention, {}, {"context_size": 5}),
        "bias": (attention, {"output_bias": True}, {"output_bias": True, "bias": False}),
        "output_bias": (attention, {}, {"output_bias": False}),
        "scale": (attention, {}, {"scale": 1.0}),
        "dropout": (attention, {}, {"dropout": 0.5}),
        "is_causal": (attention, {}, {"is_causal": True}),
        "window": (attention, {}, {"window": 2}),
        "query_norm": (attention, {}, {"query_norm": RMSNorm(3)}),
        "key_norm": (attention, {}, {"key_norm": RMSNorm(3)}),
        "length_scale": (attention, {}, {"length_scale": True}),
    },
    SelfAttentionBlock: residual(SelfAttentionBlock),
    CrossAttentionBlock: residual(CrossAttentionBlock),
    FeedForwardBlock: residual(FeedForwardBlock),
    ParallelBlock: {
        "attention": (parallel, {}, {"sub": attention(num_heads=2)}),
        "feed_forward": (parallel, {}, {"feed_forward": FeedForward(12, 16, activation="relu")}),
        "norm": (parallel, {}, {"norm": RMSNorm(12)}),
        "feed_forward_norm": (parallel, {}, {"feed_forward_norm": RMSNorm(12)}),
        "dropout": (parallel, {}, {"dropout": 0.5}),
    },
    TransformerBlock: {
        "self_attention": (block, {}, {"self_attention": SelfAttentionBlock(attention(), LayerNorm(12), norm_position="post")}),
        "feed_forward": (block, {}, {"feed_forward": FeedForwardBlock(FeedForward(12, 16), LayerNorm(12), norm_position="post")}),
        "cross_attention": (block, {}, {"cross_attention": CrossAttentionBlock(attention(), LayerNorm(12))}),
    },
    **{
        stack: {
            "blocks": (deep, {"stack": stack}, {"stack": stack, "count": 2}),
            "norm": (deep, {"stack": stack}, {"stack": stack, "norm": LayerNorm(12)}),
            "position": (deep, {"stack": stack}, {"stack": stack, "position": AlibiBias(4)}),
        }
        for stack in (Encoder, Decoder)
    },
    RelativePositionBias: {
        "num_heads": (plain(RelativePositionBias, 4), {}, {"sizes": (3,)}),
        "num_buckets": (plain(RelativePositionBias, 4), {}, {"num_buckets": 16}),
        "max_distance": (plain(RelativePositionBias, 4), {}, {"max_distance": 20}),
        "is_bidirectional": (plain(RelativePositionBias, 4), {}, {"is_bidirectional": False}),
    },
    SegmentPositionBias: {
        "num_heads": (plain(SegmentPositionBias, 4), {"num_segments": 2}, {"num_segments": 2, "sizes": (3,)}),
        "num_segments": (plain(SegmentPositionBias, 4), {"num_segments": 2}, {"num_segments": 3}),
        "num_buckets": (plain(SegmentPositionBias, 4), {"num_segments": 2}, {"num_segments": 2, "num_buckets": 16}),
        "max_distance": (
            plain(SegmentPositionBias, 4),
            {"num_segments": 2, "num_buckets": 16},
            {"num_segments": 2, "num_buckets": 16, "max_distance": 20},
        ),
    },
    AlibiBias: {"num_heads": (plain(AlibiBias, 4), {}, {"sizes": (3,)})},
    RotaryEmbedding: {
        "head_size": (plain(RotaryEmbedding, 12), {}, {"sizes": (8,)}),
        "theta": (plain(RotaryEmbedding, 12), {}, {"theta": 500.0}),
        "rotary_size": (plain(RotaryEmbedding, 12), {}, {"rotary_size": 4}),
        "is_interleaved": (plain(RotaryEmbedding, 12), {}, {"is_interleaved": True}),
        "scaling": (plain(RotaryEmbedding, 12), {}, {"scaling": SCALING}),
    },
    RotaryScaling: {
        "kind": (scaled, {"original_max_positions": 16}, {"original_max_positions": 16, "kind": "dynamic"}),
        "factor": (scaled, {}, {"factor": 3.0}),
        "original_max_positions": (scaled, YARN, YARN | {"original_max_positions": 200}),
        "low_frequency_factor": (scaled, LLAMA3, LLAMA3 | {"low_frequency_factor": 2.0}),
        "high_frequency_factor": (scaled, LLAMA3, LLAMA3 | {"high_frequency_factor": 9.0}),
        "beta_fast": (scaled, YARN, YARN | {"beta_fast": 2.0}),
        "beta_slow": (scaled, YARN, YARN | {"beta_slow": 0.1}),
        "attention_factor": (scaled, YARN, YARN | {"attention_factor": 2.0}),
    },
}


def result(layer: nn.Module) -> list[torch.Tensor | str]:
    """All that can be seen of a layer: what it answers to the same inputs, what it stores, and what it declares."""
    kept = [getattr(layer, "padding_idx", None), getattr(layer, "tensor_split", None), getattr(layer, "max_positions", None)]
    shapes = str([(name, tuple(each.shape)) for name, each in layer.named_parameters()]) + str(kept)
    torch.manual_seed(0)
    fill(layer)
    with torch.no_grad():
        try:
            return [shapes, answer(layer.train())]
        except RuntimeError as error:  # widths that no longer fit the same input
            return [shapes, str(error)]


def answer(layer: nn.Module) -> torch.Tensor:
    if isinstance(layer, Embedding):
        return layer(torch.tensor([0, 1, 2]))
    if isinstance(layer, RotaryEmbedding):
        table = layer(LONG).query_rotary
        return layers.rotary.apply_rotary(torch.arange(1.0, 13).expand(1, 60, 1, 12), table)
    if isinstance(layer, SegmentPositionBias):
        return layer(LONG, torch.tensor([[0, 1] * 30])).bias
    if isinstance(layer, RelativePositionBias | AlibiBias):
        return layer(LONG).bias
    if isinstance(layer, Router):
        return layer(X.flatten(0, 1)).weights
    if isinstance(layer, Experts):
        return layer(X.flatten(0, 1), [4, 5, 1] + [0] * (layer.num_experts - 3))
    if isinstance(layer, CrossAttentionBlock):
        return layer(X, LAYOUT, X.flip(1), LAYOUT)
    if isinstance(layer, TransformerBlock) and layer.cross_attention is not None:
        return layer(X, LAYOUT, context=X.flip(1), context_layout=LAYOUT)
    takes_layout = (Attention, SelfAttentionBlock, ParallelBlock, TransformerBlock, Encoder, Decoder)
    return layer(X, LAYOUT) if isinstance(layer, takes_layout) else layer(X)


CASES = [(kind, option, *row) for kind, rows in ROWS.items() for option, row in rows.items()]


@pytest.mark.parametrize(
    ("kind", "option", "build", "before", "after"), CASES, ids=[f"{kind.__name__}-{option}" for kind, option, *_ in CASES]
)
def test_option_changes_what_the_layer_does(kind, option, build, before, after):
    first, again, second = result(build(**before)), result(build(**before)), result(build(**after))
    same = lambda one, other: one == other if isinstance(one, str) or isinstance(other, str) else torch.equal(one, other)  # noqa: E731  # twice below
    assert all(same(one, other) for one, other in zip(first, again, strict=True)), "the comparison itself is not stable"
    assert not all(same(one, other) for one, other in zip(first, second, strict=True))


def test_every_option_of_every_layer_has_a_row():
    kinds = [
        each
        for each in (getattr(layers, name) for name in layers.__all__)
        if isinstance(each, type) and issubclass(each, nn.Module)
    ]
    for kind in [*kinds, RotaryScaling]:
        options = [name for name in inspect.signature(kind).parameters if name != "self"]
        assert sorted(ROWS[kind]) == sorted(options), kind.__name__


@pytest.mark.parametrize("option", [{"dtype": torch.float64}, {"device": "meta"}])
def test_a_cache_stores_as_it_is_told(option):
    keys, _ = KeyValueCache(1, 1, 2, 4, **option).stored()
    assert all(str(getattr(keys, name)) == str(value) for name, value in option.items())
