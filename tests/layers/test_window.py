"""A long sequence is attended to in blocks; a mask over all pairs says what must come out."""

import pytest
import torch
from naive_attention import fill, naive_attention

from modelzoo.layers import Attention, Layout
from modelzoo.layers.masks import attention_masks
from modelzoo.layers.window import window_blocks

WIDTH = 75
MASK = torch.ones(4, WIDTH, dtype=torch.long)
MASK[0, 60:] = 0
MASK[1, :20] = 0
MASK[2, 10:50:3] = 0  # holes: neighbours by place may be far by column
MASK[3, 5:] = 0
X = torch.randn(4, WIDTH, 12, generator=torch.Generator().manual_seed(0))
GLOBAL = torch.zeros(4, WIDTH, dtype=torch.long)
GLOBAL[0, [0, 7, 59]] = 1
GLOBAL[1, 20:40] = 1
GLOBAL[2, 49] = 1


def allowed(columns: torch.Tensor, flags: torch.Tensor, window: int, is_causal: bool) -> torch.Tensor:
    """Who may attend to whom, one pair at a time."""
    rows = [
        [
            (abs(int(q) - int(k)) < window or bool(own) or bool(other)) and (not is_causal or int(k) <= int(q))
            for k, other in zip(columns, flags, strict=True)
        ]
        for q, own in zip(columns, flags, strict=True)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize("window", [1, 5, 17, 24, 40])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("has_global", [True, False])
def test_blocks_give_what_a_mask_over_all_pairs_gives(window: int, is_causal: bool, has_global: bool) -> None:
    layer = fill(Attention(12, 3, num_key_value_heads=1, is_causal=is_causal, window=window))
    layout = Layout.packed(MASK, is_global=GLOBAL if has_global else None)
    hidden = layout.pack(X).requires_grad_()
    found = layer(hidden, layout)
    flags = layout.pack(GLOBAL) if has_global else torch.zeros(len(hidden), dtype=torch.long)
    pieces = zip(*(each.split(layout.lengths) for each in (hidden, layout.columns, flags)), strict=True)
    expected = torch.cat([naive_attention(layer, x, x, allowed(columns, each, window, is_causal)) for x, columns, each in pieces])
    assert torch.allclose(found, expected, atol=1e-5)
    weights = torch.randn_like(found)
    (mine,) = torch.autograd.grad((found * weights).sum(), hidden)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), hidden)
    assert torch.allclose(mine, theirs, atol=1e-4)


def test_only_long_sequences_are_cut_and_only_once() -> None:
    layout = Layout.packed(MASK)
    blocks = window_blocks(layout, window=5, is_causal=False)
    assert [each is not None for each in blocks] == [True, True, True, False]
    assert window_blocks(layout, window=5, is_causal=False) is blocks
    assert window_blocks(layout, window=60, is_causal=False) == (None,) * 4
    assert blocks[0] is not None
    assert blocks[0].mask.shape == (4, 1, 16, 48)


def test_memory_of_a_window_grows_with_the_tokens_alone() -> None:
    sizes = []
    for width in (512, 1024):
        (cut,) = window_blocks(Layout.packed(torch.ones(1, width)), window=33, is_causal=False)
        assert cut is not None
        sizes.append(cut.mask.numel())
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize("ends", ["first_rows", "last_rows"])
def test_a_selected_query_sees_what_it_sees_in_the_full_forward(ends: str) -> None:
    layer = fill(Attention(12, 3, window=5))
    layout = Layout.packed(MASK, is_global=GLOBAL)
    hidden, selection = layout.pack(X), getattr(layout, ends)()
    found = layer(selection.take(hidden), selection.layout, context=hidden, context_layout=layout)
    assert torch.allclose(found, selection.take(layer(hidden, layout)), atol=1e-5)


def test_without_a_window_global_tokens_change_nothing() -> None:
    layout = Layout.packed(MASK, is_global=GLOBAL)
    assert attention_masks(layout, layout, is_causal=False, window=None) is None


def test_dropped_weights_keep_their_mean() -> None:
    layer = fill(Attention(12, 3, window=9, dropout=0.5)).train()
    layout = Layout.packed(MASK[:1], is_global=GLOBAL[:1])
    hidden = layout.pack(X[:1])
    torch.manual_seed(0)
    mean = torch.stack([layer(hidden, layout) for _ in range(400)]).mean(0)
    expected = layer.eval()(hidden, layout)
    assert (mean - expected).abs().mean() < 0.05 * expected.abs().mean()
