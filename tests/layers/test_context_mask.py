"""A layout's context: every query sees it, it sees nothing else, wherever it stands, packed or dense."""

import pytest
import torch
from naive_attention import fill, naive_attention

from modelzoo.layers import Attention, FeedForward, Layout, Linear, SelfAttentionBlock

X = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
CONTEXT = torch.tensor([[1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 0]]).bool()  # not at the start alone


def allowed(row: int, length: int, *, is_causal: bool) -> torch.Tensor:
    context = CONTEXT[row, :length]
    result = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        for key in range(length):
            result[query, key] = context[key] or (not context[query] and (key <= query or not is_causal))
    return result


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_packed_context_equals_a_naive_mask(is_causal):
    layer = fill(Attention(12, 4, is_causal=is_causal))
    layout = Layout.packed(MASK, context=CONTEXT)
    found = layout.unpack(layer(layout.pack(X), layout))
    for row, length in enumerate((6, 4)):
        expected = naive_attention(layer, X[row, :length], X[row, :length], allowed(row, length, is_causal=is_causal))
        torch.testing.assert_close(found[row, :length], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK])
def test_a_dense_context_equals_a_naive_mask(mask):
    layer = fill(Attention(12, 4, is_causal=True))
    found = layer(X, Layout.dense(2, 6, mask=mask, context=CONTEXT))
    for row, length in enumerate((6, 6 if mask is None else 4)):
        expected = naive_attention(layer, X[row, :length], X[row, :length], allowed(row, length, is_causal=True))
        torch.testing.assert_close(found[row, :length], expected, rtol=0, atol=1e-5)


def test_a_context_holds_within_spans():
    layer = fill(Attention(12, 4, is_causal=True))
    spans = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    layout = Layout.packed(torch.ones(2, 6), spans=spans, context=CONTEXT)
    found = layout.unpack(layer(layout.pack(X), layout))
    for row in range(2):
        whole = allowed(row, 6, is_causal=True)
        for part in (slice(0, 3), slice(3, 6)):
            expected = naive_attention(layer, X[row, part], X[row, part], whole[part, part])
            torch.testing.assert_close(found[row, part], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", [Layout.packed(MASK, context=CONTEXT), Layout.dense(2, 6, context=CONTEXT)])
def test_selected_tokens_keep_their_context(layout):
    block = fill(SelfAttentionBlock(Attention(12, 4, is_causal=True), torch.nn.Identity()))
    hidden, last = layout.pack(X), layout.last_rows()
    torch.testing.assert_close(block(hidden, layout, selection=last), last.take(block(hidden, layout)), rtol=0, atol=1e-5)


def test_length_scale_divides_every_map_by_the_root_of_its_width():
    attention = Attention(12, 4, head_size=5, context_size=7, length_scale=True)
    network = FeedForward(12, 16, is_gated=True, length_scale=True)
    maps = [module for part in (attention, network) for module in part.modules() if isinstance(module, Linear)]
    assert len(maps) == 7
    assert all(each.scale == each.in_features**-0.5 for each in maps)


def test_sum_scale_is_on_the_sum():
    plain, scaled = (fill(SelfAttentionBlock(Attention(12, 4), torch.nn.Identity(), sum_scale=scale)) for scale in (1.0, 0.5))
    layout = Layout.dense(2, 6)
    torch.testing.assert_close(scaled(X, layout), plain(X, layout) * 0.5)
    assert "sum_scale=0.5" in repr(scaled)
