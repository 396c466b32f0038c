import pytest
import torch
from naive_attention import fill
from torch import nn

from modelzoo.layers import (
    AlibiBias,
    Attention,
    CrossAttentionBlock,
    Decoder,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    KeyValueCache,
    LayerNorm,
    Layout,
    ParallelBlock,
    RelativePositionBias,
    RotaryEmbedding,
    RotaryScaling,
    SegmentPositionBias,
    SelfAttentionBlock,
    TransformerBlock,
)

X = torch.randn(3, 6, 12, generator=torch.Generator().manual_seed(0))
CONTEXT = torch.randn(3, 4, 12, generator=torch.Generator().manual_seed(1))
LAYOUTS = {
    "dense": Layout.dense(3, 6),
    "left": Layout.packed(torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0] * 5 + [1]])),
    "right": Layout.packed(torch.tensor([[1, 1, 0, 0, 0, 0], [1] * 6, [1] * 5 + [0]])),
    "empty rows": Layout.packed(torch.tensor([[0] * 6, [1] * 6, [0] * 6])),
    "spans": Layout.packed(torch.ones(3, 6), spans=torch.tensor([[0, 0, 1, 1, 1, 1], [0] * 6, [0, 1, 2, 3, 4, 4]])),
}
DYNAMIC = RotaryScaling(kind="dynamic", factor=2.0, original_max_positions=3)
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(4),
    "dynamic": lambda: RotaryEmbedding(4, scaling=DYNAMIC),
    "relative": lambda: RelativePositionBias(3, num_buckets=8, max_distance=16),
    "alibi": lambda: AlibiBias(3),
}


def block(norm_position="pre", crosses=False, is_causal=False, is_parallel=False):
    attention, feed_forward = Attention(12, 3, is_causal=is_causal), FeedForward(12, 16, activation="relu")
    if is_parallel:
        return ParallelBlock(attention, feed_forward, LayerNorm(12))
    cross = CrossAttentionBlock(Attention(12, 3), LayerNorm(12), norm_position=norm_position) if crosses else None
    return TransformerBlock(
        SelfAttentionBlock(attention, LayerNorm(12), norm_position=norm_position),
        FeedForwardBlock(feed_forward, LayerNorm(12), norm_position=norm_position),
        cross,
    )


def assert_close(mine, other, tolerance=1e-5):
    torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def test_a_stack_is_its_blocks_and_its_norm():
    model = fill(Encoder([block() for _ in range(3)], LayerNorm(12)))
    expected = X
    for each in model.layers:
        expected = each(expected, LAYOUTS["dense"])
    assert torch.equal(model(X, LAYOUTS["dense"]), model.norm(expected))
    model.norm = None
    assert torch.equal(model(X, LAYOUTS["dense"]), expected)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("ends", ["first_rows", "last_rows"])
def test_selected_tokens_and_their_gradients_are_those_of_the_full_forward(stack, layout, position, ends):
    model = fill(stack([block("post", is_causal=stack is Decoder) for _ in range(2)], LayerNorm(12), POSITIONS[position]()))
    layout, gradients, results = LAYOUTS[layout], [], []
    for selects in (True, False):
        model.zero_grad()
        x, selection = X.clone().requires_grad_(), getattr(layout, ends)()
        hidden = layout.pack(x)
        selected = model(hidden, layout, selection=selection) if selects else selection.take(model(hidden, layout))
        selection.spread(selected).square().sum().backward()
        results.append(selection.spread(selected))
        gradients.append([x.grad] + [p.grad for p in model.parameters()])
    assert_close(*results)
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other, 1e-4)


def test_a_stack_of_one_block_selects_too():
    model, layout = fill(Encoder([block(is_parallel=True)], LayerNorm(12))), LAYOUTS["left"]
    first, hidden = layout.first_rows(), layout.pack(X)
    assert_close(model(hidden, layout, selection=first), first.take(model(hidden, layout)))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_decoder_with_a_context_equals_torch(norm_position):
    ours = fill(Decoder([block(norm_position, crosses=True, is_causal=True) for _ in range(2)], LayerNorm(12)))
    layer = nn.TransformerDecoderLayer(12, 3, 16, dropout=0.0, batch_first=True, norm_first=norm_position == "pre")
    theirs = nn.TransformerDecoder(layer, 2, nn.LayerNorm(12))
    theirs.norm.load_state_dict(ours.norm.state_dict())
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        for attention, reference in (
            (mine.self_attention.sublayer, other.self_attn),
            (mine.cross_attention.sublayer, other.multihead_attn),
        ):
            maps = (attention.query, attention.key, attention.value)
            reference.in_proj_weight.data = torch.cat([each.weight.data for each in maps])
            reference.in_proj_bias.data = torch.cat([each.bias.data for each in maps])
            reference.out_proj.load_state_dict(attention.output.state_dict())
        other.norm1.load_state_dict(mine.self_attention.norm.state_dict())
        other.norm2.load_state_dict(mine.cross_attention.norm.state_dict())
        other.norm3.load_state_dict(mine.feed_forward.norm.state_dict())
        other.linear1.load_state_dict(mine.feed_forward.sublayer.up.state_dict())
        other.linear2.load_state_dict(mine.feed_forward.sublayer.down.state_dict())
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    expected = theirs(X, CONTEXT, tgt_mask=torch.ones(6, 6, dtype=torch.bool).triu(1), memory_key_padding_mask=~mask)
    found = ours(X, LAYOUTS["dense"], context=CONTEXT, context_layout=Layout.dense(3, 4, mask=mask))
    assert_close(found, expected)
    own, context = Layout.packed(torch.ones(3, 6)), Layout.packed(mask)
    packed = ours(own.pack(X), own, context=context.pack(CONTEXT), context_layout=context)
    assert_close(own.unpack(packed), expected)


def test_a_position_from_outside_takes_the_place_of_the_own():
    model, bias, layout = fill(Encoder([block()])), fill(SegmentPositionBias(3, num_segments=2, num_buckets=8)), LAYOUTS["dense"]
    position = bias(layout, torch.tensor([[0, 0, 0, 1, 1, 1]] * 3))
    expected = model.layers[0](X, layout, position=position)
    assert torch.equal(model(X, layout, position=position), expected)
    assert not torch.allclose(model(X, layout), expected)
    with pytest.raises(ValueError, match="give no selection with it"):
        model(X, layout, position=position, selection=layout.first_rows())


def test_caches_and_a_selection_exclude_each_other():
    model, layout = Decoder([block(is_causal=True)]), LAYOUTS["dense"]
    with pytest.raises(ValueError, match="caches hold every token's keys; give no selection with them"):
        model(X, layout, caches=[KeyValueCache(3, 3, 6, 4)], selection=layout.first_rows())


@pytest.mark.parametrize("name", ["caches", "context_caches"])
@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_caches_than_blocks_is_refused(name, count):
    model = Decoder([block(crosses=True, is_causal=True) for _ in range(2)])
    options = {name: [KeyValueCache(3, 3, 6, 4) for _ in range(count)]}
    with pytest.raises(ValueError, match=rf"{count} {name} were given to a stack of 2 blocks; give one a block"):
        model(X, LAYOUTS["dense"], context=CONTEXT, context_layout=Layout.dense(3, 4), **options)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_a_stack_without_blocks_is_refused(stack):
    with pytest.raises(ValueError, match="a stack needs at least one block"):
        stack([])


@pytest.mark.parametrize("stack", [Encoder, Decoder])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_may_have_position_modules_of_their_own(stack, layout):
    near, far = RotaryEmbedding(4, theta=100.0), RotaryEmbedding(4, theta=10000.0)
    model = fill(stack([block() for _ in range(3)], None, [far, near, far]))
    assert len(model.positions) == 2
    layout, expected = LAYOUTS[layout], LAYOUTS[layout].pack(X)
    for each, rotary in zip(model.layers, (far, near, far), strict=True):
        expected = each(expected, layout, position=rotary(layout))
    assert torch.equal(model(layout.pack(X), layout), expected)
    first = layout.first_rows()
    assert_close(model(layout.pack(X), layout, selection=first), first.take(expected))


def test_position_modules_are_one_a_block():
    with pytest.raises(ValueError, match="2 position modules were given to a stack of 3 blocks; give one a block"):
        Encoder([block() for _ in range(3)], None, [RotaryEmbedding(4), RotaryEmbedding(4)])
