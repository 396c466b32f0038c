"""Decoding with a cache is the full forward, token by token."""

import pytest
import torch
from naive_attention import fill

from modelzoo.layers import (
    AlibiBias,
    Attention,
    CrossAttentionBlock,
    Decoder,
    FeedForward,
    FeedForwardBlock,
    KeyValueCache,
    LayerNorm,
    Layout,
    RelativePositionBias,
    RotaryEmbedding,
    SelfAttentionBlock,
    TransformerBlock,
)

X = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
CONTEXT = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(1))
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(4),
    "relative": lambda: RelativePositionBias(3, num_buckets=4, max_distance=6, is_bidirectional=False),
    "alibi": lambda: AlibiBias(3),
}


def decoder(position=None, *, crosses=False, **options) -> Decoder:
    def block() -> TransformerBlock:
        cross = CrossAttentionBlock(Attention(12, 3), LayerNorm(12)) if crosses else None
        own = SelfAttentionBlock(Attention(12, 3, is_causal=True, **options), LayerNorm(12))
        return TransformerBlock(own, FeedForwardBlock(FeedForward(12, 16), LayerNorm(12)), cross)

    return fill(Decoder([block() for _ in range(2)], LayerNorm(12), position))


def caches(length=7, heads=3):
    return [KeyValueCache(2, heads, length, 4) for _ in range(2)]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"num_key_value_heads": 1}])
@pytest.mark.parametrize("steps", [(1,) * 7, (4, 1, 2), (7,)])
@torch.no_grad()
def test_token_by_token_equals_the_full_forward(position, options, steps):
    model = decoder(POSITIONS[position](), **options)
    stored = caches(heads=options.get("num_key_value_heads", 3))
    full, start = model(X, Layout.dense(2, 7)), 0
    for width in steps:
        part = model(X[:, start : start + width], Layout.dense(2, width, start=start), caches=stored)
        torch.testing.assert_close(part, full[:, start : start + width], rtol=1e-5, atol=1e-5)
        start += width


@torch.no_grad()
def test_left_padding_is_hidden_in_every_step():
    model, stored = decoder(RotaryEmbedding(4)), caches()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    short = model(X[:1, 2:], Layout.dense(1, 5))
    for step in range(7):
        layout = Layout.dense(2, 1, start=step, positions=positions[:, step : step + 1], mask=mask[:, : step + 1])
        part = model(X[:, step : step + 1], layout, caches=stored)
        assert part.isfinite().all()
        if step >= 2:
            torch.testing.assert_close(part[:1, 0], short[:, step - 2], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_context_is_read_once():
    model = decoder(crosses=True)
    full = model(X, Layout.dense(2, 7), context=CONTEXT, context_layout=Layout.dense(2, 4))
    own, cross, reads = caches(), caches(4), []
    for block in model.layers:
        block.cross_attention.sublayer.key.register_forward_hook(lambda *_: reads.append(1))
    for step in range(7):
        layout = Layout.dense(2, 1, start=step)
        options = {"context": CONTEXT, "context_layout": Layout.dense(2, 4), "caches": own, "context_caches": cross}
        part = model(X[:, step : step + 1], layout, **options)
        torch.testing.assert_close(part[:, 0], full[:, step], rtol=1e-5, atol=1e-5)
    assert len(reads) == 2


def test_a_full_cache_says_how_full():
    cache = KeyValueCache(2, 3, 4, 4)
    cache.append(torch.zeros(2, 3, 3, 4), torch.zeros(2, 3, 3, 4))
    with pytest.raises(ValueError, match="a cache of 4 tokens holds 3 and cannot take 2 more"):
        cache.append(torch.zeros(2, 3, 2, 4), torch.zeros(2, 3, 2, 4))
    assert cache.length == 3


def test_keys_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected keys and values of shape \(2, 3, tokens, 4\), found \(1, 3, 2, 4\)"):
        KeyValueCache(2, 3, 4, 4).append(torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 2, 4))


def test_a_layout_that_does_not_continue_the_cache_is_refused():
    model, stored = decoder(), caches()
    model(X[:, :3], Layout.dense(2, 3), caches=stored)
    with pytest.raises(ValueError, match="layout starts at column 0 and its cache holds 3 tokens"):
        model(X[:, 3:4], Layout.dense(2, 1), caches=stored)


def test_packed_tokens_take_no_cache():
    layer, layout = Attention(12, 3), Layout.packed(torch.ones(2, 7))
    with pytest.raises(ValueError, match="a cache needs a dense layout"):
        layer(layout.pack(X), layout, cache=KeyValueCache(2, 3, 7, 4))


def test_a_selection_takes_no_cache():
    block, layout = decoder().layers[0], Layout.dense(2, 7)
    with pytest.raises(ValueError, match="a selection and a cache"):
        block(X, layout, selection=layout.first_rows(), cache=KeyValueCache(2, 3, 7, 4))


@torch.no_grad()
def test_reordered_rows_continue_the_other_beam():
    model, stored = decoder(RotaryEmbedding(4)), caches()
    model(X[:, :4], Layout.dense(2, 4), caches=stored)
    for cache in stored:
        cache.reorder(torch.tensor([1, 1]))
    part = model(X[:, 4:5], Layout.dense(2, 1, start=4), caches=stored)
    rows = torch.cat([X[1:, :4].expand(2, -1, -1), X[:, 4:5]], 1)
    torch.testing.assert_close(part[:, 0], model(rows, Layout.dense(2, 5))[:, 4], rtol=1e-5, atol=1e-5)


def test_a_cache_has_the_dtype_asked_for():
    keys, values = KeyValueCache(1, 1, 2, 4, dtype=torch.bfloat16).append(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
    assert keys.dtype == values.dtype == torch.bfloat16
