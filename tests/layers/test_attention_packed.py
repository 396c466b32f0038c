"""Packed attention is dense attention on the real tokens, whatever the mask, the order rule and the positions."""

import pytest
import torch
from naive_attention import fill, naive_attention

from modelzoo.layers import AlibiBias, Attention, Layout, Position, RelativePositionBias, RotaryEmbedding

X = torch.randn(4, 6, 12, generator=torch.Generator().manual_seed(0))
MASKS = {
    "right": [[1] * 6, [1] * 3 + [0] * 3, [1] + [0] * 5, [1] * 5 + [0]],
    "left": [[1] * 6, [0] * 3 + [1] * 3, [0] * 5 + [1], [0] + [1] * 5],
    "within": [[1, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1], [1] * 6],
    "empty rows": [[0] * 6, [1] * 6, [0] * 6, [1, 1, 0, 0, 0, 0]],
}
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(4),
    "relative": lambda: RelativePositionBias(3, num_buckets=8, max_distance=16),
    "alibi": lambda: AlibiBias(3),
}


def place(module, layout):
    return Position() if module is None else fill(module)(layout)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"window": 2}, {"is_causal": True, "window": 3, "num_key_value_heads": 1}]
)
def test_packed_equals_dense_on_real_tokens(mask, positions, options):
    mask, module = torch.tensor(MASKS[mask]), POSITIONS[positions]()
    layer = fill(Attention(12, 3, **options))
    packed, dense = Layout.packed(mask), Layout.dense(4, 6, mask=mask)
    mine = packed.unpack(layer(packed.pack(X), packed, position=place(module, packed)))
    other = layer(X, dense, position=place(module, dense))
    assert other.isfinite().all()
    torch.testing.assert_close(mine, other * mask[..., None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
def test_prefix_counts_the_tokens_of_its_own_sequence(mask):
    mask = torch.tensor(MASKS[mask])
    layer, prefix = fill(Attention(12, 3, is_causal=True)), (2, 1, 1, 4)
    packed, dense = Layout.packed(mask, prefix=prefix), Layout.dense(4, 6, mask=mask, prefix=prefix)
    mine, other = packed.unpack(layer(packed.pack(X), packed)), layer(X, dense)
    for row in range(4):
        real = mask[row].bool()
        tokens = X[row][real]
        allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril() | (torch.arange(len(tokens)) < prefix[row])
        expected = naive_attention(layer, tokens, tokens, allowed)
        torch.testing.assert_close(mine[row][real], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other[row][real], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "window": 2}])
def test_spans_of_one_row_are_separate_sequences(options):
    layer = fill(Attention(12, 3, **options))
    spans = torch.tensor([[0, 0, 1, 1, 1, 2]])
    row = X[:1]
    together = Layout.packed(torch.ones(1, 6), spans=spans)
    assert together.lengths == (2, 3, 1)
    mine = layer(together.pack(row), together)
    alone = [layer(part, Layout.dense(1, part.shape[1]))[0] for part in row.split((2, 3, 1), 1)]
    torch.testing.assert_close(mine, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_prefix_of_a_span_counts_from_the_span():
    layer = fill(Attention(12, 3, is_causal=True))
    layout = Layout.packed(torch.ones(1, 6), spans=torch.tensor([[0, 0, 1, 1, 1, 1]]), prefix=(0, 2))
    alone = layer(X[:1, 2:], Layout.dense(1, 4, prefix=(2,)))
    torch.testing.assert_close(layer(layout.pack(X[:1]), layout)[2:], alone[0], rtol=1e-5, atol=1e-5)


def test_gradients_do_not_reach_padding_or_other_rows():
    layer, mask = fill(Attention(12, 3)), torch.tensor(MASKS["left"])
    x, layout = X.clone().requires_grad_(), Layout.packed(mask)
    layout.unpack(layer(layout.pack(x), layout))[1].sum().backward()
    touched = x.grad.abs().sum(-1) > 0
    assert touched.tolist() == [[False] * 6, [False] * 3 + [True] * 3, [False] * 6, [False] * 6]


def test_a_sequence_whose_context_is_empty_is_finite():
    layer = fill(Attention(12, 3))
    own, context = Layout.packed(torch.ones(4, 6)), Layout.packed(torch.tensor(MASKS["empty rows"]))
    for dropout in (0.0, 0.5):
        layer.dropout = dropout
        x = X.clone().requires_grad_()
        found = layer.train()(own.pack(x), own, context=context.pack(x), context_layout=context)
        found.sum().backward()
        assert found.isfinite().all()
        assert x.grad.isfinite().all()


def test_a_query_that_no_key_is_near_is_finite():
    layer = fill(Attention(12, 3, window=2))
    own, context = Layout.packed(torch.ones(4, 6)), Layout.packed(torch.tensor([[1, 0, 0, 0, 0, 0]] * 4))
    x = X.clone().requires_grad_()
    found = layer(own.pack(x), own, context=context.pack(x), context_layout=context)
    found.sum().backward()
    assert found.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("mask", ["right", "left", "empty rows"])
def test_dense_rows_without_a_visible_key_are_finite(mask):
    layer, mask = fill(Attention(12, 3, is_causal=True)), torch.tensor(MASKS[mask])
    x = X.clone().requires_grad_()
    found = layer(x, Layout.dense(4, 6, mask=mask))
    (found * mask[..., None]).sum().backward()
    assert found.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_batch_of_padding_alone_gives_nothing():
    layer, layout = fill(Attention(12, 3)), Layout.packed(torch.zeros(2, 3))
    found = layer(layout.pack(X[:2, :3]), layout)
    assert found.shape == (0, 12)
    assert torch.equal(layout.unpack(found), torch.zeros(2, 3, 12))
