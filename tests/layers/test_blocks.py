import pytest
import torch
from naive_attention import fill, naive_attention
from torch import nn
from transformers import GPTJConfig
from transformers.models.gptj.modeling_gptj import GPTJBlock, create_sinusoidal_positions

from modelzoo.layers import (
    Attention,
    CrossAttentionBlock,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    Layout,
    ParallelBlock,
    RMSNorm,
    RotaryEmbedding,
    SelfAttentionBlock,
    TransformerBlock,
)

X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
CONTEXT = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(1))
LAYOUT, CONTEXT_LAYOUT = Layout.dense(2, 5), Layout.dense(2, 4)


def assert_close(mine, other):
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def run(block, hidden=X):
    if isinstance(block, CrossAttentionBlock):
        return block(hidden, LAYOUT, CONTEXT, CONTEXT_LAYOUT)
    return block(hidden, LAYOUT) if isinstance(block, SelfAttentionBlock) else block(hidden)


def change(block, source):
    """What a block adds, row by row, without its norm."""
    if isinstance(block, FeedForwardBlock):
        return block.sublayer.down(nn.functional.gelu(block.sublayer.up(source)))
    contexts = CONTEXT if isinstance(block, CrossAttentionBlock) else source
    return torch.stack([naive_attention(block.sublayer, row, context) for row, context in zip(source, contexts, strict=True)])


BLOCKS = {
    "self": lambda **options: SelfAttentionBlock(Attention(12, 3), LayerNorm(12), **options),
    "cross": lambda **options: CrossAttentionBlock(Attention(12, 3), LayerNorm(12), **options),
    "feed forward": lambda **options: FeedForwardBlock(FeedForward(12, 16), LayerNorm(12), **options),
}


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("residual_scale", [1.0, 0.3])
def test_pre_norm_normalises_the_input(build, residual_scale):
    block = fill(build(residual_scale=residual_scale))
    assert_close(run(block), X + residual_scale * change(block, block.norm(X)))


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("residual_scale", [1.0, 0.3])
def test_post_norm_normalises_the_sum(build, residual_scale):
    # ModelCenter's cross-attention block took the option and ignored it.
    block = fill(build(norm_position="post", residual_scale=residual_scale))
    assert_close(run(block), block.norm(X + residual_scale * change(block, X)))


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_dropout_acts_on_the_change_alone_and_in_training_alone(build):
    block = fill(build(dropout=0.5))
    added = run(block.eval()) - X
    torch.manual_seed(0)
    dropped = run(block.train()) - X
    kept = dropped.abs() > 1e-6
    assert 0.3 < kept.float().mean() < 0.7
    assert_close(dropped[kept], 2 * added[kept])


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_unknown_norm_position_is_refused(build):
    with pytest.raises(ValueError, match="norm_position='sandwich' is not known; use 'pre' or 'post'"):
        build(norm_position="sandwich")


@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_print_shows_the_options(build):
    assert build(norm_position="post", residual_scale=0.5).extra_repr() == "norm_position=post, residual_scale=0.5"
    assert build().extra_repr() == "norm_position=pre"


def transformer_block(norm_position="pre", crosses=True):
    cross = CrossAttentionBlock(Attention(12, 3), LayerNorm(12), norm_position=norm_position) if crosses else None
    own = SelfAttentionBlock(Attention(12, 3, is_causal=True), LayerNorm(12), norm_position=norm_position)
    feed_forward = FeedForwardBlock(FeedForward(12, 16, activation="relu"), LayerNorm(12), norm_position=norm_position)
    return fill(TransformerBlock(own, feed_forward, cross))


def copy_attention(ours, theirs):
    theirs.in_proj_weight.data = torch.cat([each.weight.data for each in (ours.query, ours.key, ours.value)])
    theirs.in_proj_bias.data = torch.cat([each.bias.data for each in (ours.query, ours.key, ours.value)])
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_block_with_a_context_equals_torch_decoder_layer(norm_position):
    ours = transformer_block(norm_position)
    theirs = nn.TransformerDecoderLayer(12, 3, 16, dropout=0.0, batch_first=True, norm_first=norm_position == "pre")
    copy_attention(ours.self_attention.sublayer, theirs.self_attn)
    copy_attention(ours.cross_attention.sublayer, theirs.multihead_attn)
    for mine, other in (
        (ours.self_attention, theirs.norm1),
        (ours.cross_attention, theirs.norm2),
        (ours.feed_forward, theirs.norm3),
    ):
        other.load_state_dict(mine.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.sublayer.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.sublayer.down.state_dict())
    hidden = torch.ones(4, dtype=torch.bool).repeat(2, 1).tril(2)  # the second context has a token less
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(X, CONTEXT, tgt_mask=future, memory_key_padding_mask=~hidden)
    dense = ours(X, LAYOUT, context=CONTEXT, context_layout=Layout.dense(2, 4, mask=hidden))
    assert_close(dense, expected)
    own, context = Layout.packed(torch.ones(2, 5)), Layout.packed(hidden)
    packed = ours(own.pack(X), own, context=context.pack(CONTEXT), context_layout=context)
    assert_close(own.unpack(packed), expected)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_block_without_a_context_equals_torch_encoder_layer(norm_position):
    ours = transformer_block(norm_position, crosses=False)
    ours.self_attention.sublayer.is_causal = False
    theirs = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True, norm_first=norm_position == "pre")
    copy_attention(ours.self_attention.sublayer, theirs.self_attn)
    theirs.norm1.load_state_dict(ours.self_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.sublayer.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.sublayer.down.state_dict())
    assert_close(ours(X, LAYOUT), theirs(X))


def test_a_context_is_neither_missing_nor_ignored():
    with pytest.raises(ValueError, match="this block attends to a context; give context and context_layout"):
        transformer_block()(X, LAYOUT)
    with pytest.raises(ValueError, match="this block has no cross-attention; leave the context out"):
        transformer_block(crosses=False)(X, LAYOUT, context=CONTEXT, context_layout=CONTEXT_LAYOUT)


def test_parallel_block_equals_gptj():
    config = GPTJConfig(n_embd=12, n_head=3, rotary_dim=2, n_inner=16, resid_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    theirs = fill(GPTJBlock(config, 0)).eval()
    attention = Attention(12, 3, bias=False, is_causal=True)
    ours = ParallelBlock(attention, FeedForward(12, 16, activation="gelu_new"), LayerNorm(12, config.layer_norm_epsilon))
    ours.norm.load_state_dict(theirs.ln_1.state_dict())
    for mine, other in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj")):
        getattr(attention, mine).load_state_dict(getattr(theirs.attn, other).state_dict())
    ours.feed_forward.up.load_state_dict(theirs.mlp.fc_in.state_dict())
    ours.feed_forward.down.load_state_dict(theirs.mlp.fc_out.state_dict())
    phases = create_sinusoidal_positions(5, 2)[None].expand(2, -1, -1).chunk(2, -1)
    future = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)[None, None]
    expected = theirs(X, attention_mask=future, position_embeddings=phases)
    assert_close(ours(X, LAYOUT, position=RotaryEmbedding(4, rotary_size=2, is_interleaved=True)(LAYOUT)), expected)


def test_parallel_block_with_two_norms_equals_naive():
    block = fill(ParallelBlock(Attention(12, 3), FeedForward(12, 16), LayerNorm(12), feed_forward_norm=RMSNorm(12)))
    attended = torch.stack([naive_attention(block.attention, row, row) for row in block.norm(X)])
    assert_close(block(X, LAYOUT), X + attended + block.feed_forward(block.feed_forward_norm(X)))


def test_parallel_block_drops_in_training_alone():
    block = fill(ParallelBlock(Attention(12, 3), FeedForward(12, 16), LayerNorm(12), dropout=0.5))
    plain = block.eval()(X, LAYOUT)
    assert torch.equal(plain, block(X, LAYOUT))
    assert not torch.allclose(plain, block.train()(X, LAYOUT))


@pytest.mark.parametrize(
    "build",
    [lambda: transformer_block(crosses=False), lambda: fill(ParallelBlock(Attention(12, 3), FeedForward(12, 16), LayerNorm(12)))],
)
@pytest.mark.parametrize("layout", [LAYOUT, Layout.packed(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]))])
@pytest.mark.parametrize("ends", ["first_rows", "last_rows"])
def test_selected_tokens_are_those_of_the_full_result(build, layout, ends):
    block, hidden = build(), layout.pack(X)
    selection = getattr(layout, ends)()
    assert_close(block(hidden, layout, selection=selection), selection.take(block(hidden, layout)))
