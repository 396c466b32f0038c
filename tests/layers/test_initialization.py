import threading

import pytest
import torch
from torch import nn

from modelzoo import layers
from modelzoo.layers import skip_initialization

BUILDERS = {
    "Linear": lambda: layers.Linear(8, 6),
    "Embedding": lambda: layers.Embedding(8, 6, 0),
    "LearnedPositionEmbedding": lambda: layers.LearnedPositionEmbedding(8, 6, 1, offset=2),
    "LayerNorm": lambda: layers.LayerNorm(8),
    "RMSNorm": lambda: layers.RMSNorm(8),
    "Dropout": lambda: layers.Dropout(0.1),
    "Attention": lambda: layers.Attention(8, 4, num_key_value_heads=2, query_norm=layers.RMSNorm(2)),
    "FeedForward": lambda: layers.FeedForward(8, 16, is_gated=True),
    "Router": lambda: layers.Router(8, 4, 2),
    "Experts": lambda: layers.Experts(4, 8, 16),
    "SharedExpert": lambda: layers.SharedExpert(8, 16),
    "MixtureOfExperts": lambda: layers.MixtureOfExperts(layers.Router(8, 4, 2), layers.Experts(4, 8, 16)),
    "RelativePositionBias": lambda: layers.RelativePositionBias(4),
    "SegmentPositionBias": lambda: layers.SegmentPositionBias(4, num_segments=3),
    "AlibiBias": lambda: layers.AlibiBias(6),
    "RotaryEmbedding": lambda: layers.RotaryEmbedding(8),
    "SelfAttentionBlock": lambda: layers.SelfAttentionBlock(layers.Attention(8, 2), layers.LayerNorm(8)),
    "CrossAttentionBlock": lambda: layers.CrossAttentionBlock(layers.Attention(8, 2), layers.LayerNorm(8)),
    "FeedForwardBlock": lambda: layers.FeedForwardBlock(layers.FeedForward(8, 16), layers.LayerNorm(8)),
    "TransformerBlock": lambda: layers.TransformerBlock(
        BUILDERS["SelfAttentionBlock"](), BUILDERS["FeedForwardBlock"](), BUILDERS["CrossAttentionBlock"]()
    ),
    "ParallelBlock": lambda: layers.ParallelBlock(layers.Attention(8, 2), layers.FeedForward(8, 16), layers.LayerNorm(8)),
    "Encoder": lambda: layers.Encoder([BUILDERS["TransformerBlock"]()], layers.LayerNorm(8), layers.RotaryEmbedding(4)),
    "Decoder": lambda: layers.Decoder([BUILDERS["ParallelBlock"]()], layers.RMSNorm(8), layers.AlibiBias(2)),
}


def test_every_layer_is_built_here():
    exported = {
        name for name in layers.__all__ if isinstance(getattr(layers, name), type) and issubclass(getattr(layers, name), nn.Module)
    }
    assert exported == set(BUILDERS)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_layer_is_built_without_memory_and_filled_later(build):
    with torch.device("meta"):
        layer = build()
    assert all(each.is_meta for each in (*layer.parameters(), *layer.buffers()))
    layer.to_empty(device="cpu")
    for each in (*layer.parameters(), *layer.buffers()):
        each.data.fill_(float("nan"))
    expected = build()
    for each in (layer, expected):
        torch.manual_seed(0)
        for module in each.modules():
            if hasattr(module, "init_weights"):
                module.init_weights()
    for mine, other in zip((*layer.parameters(), *layer.buffers()), (*expected.parameters(), *expected.buffers()), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_skipping_draws_no_random_number_and_computes_buffers(build):
    before = torch.get_rng_state()
    with skip_initialization():
        layer = build()
    assert torch.equal(torch.get_rng_state(), before)
    for mine, other in zip(layer.buffers(), build().buffers(), strict=True):
        assert torch.equal(mine, other)


def test_skipping_ends_with_its_block_even_after_an_error():
    with pytest.raises(RuntimeError, match="stop"), skip_initialization():
        raise RuntimeError("stop")
    assert torch.equal(layers.LayerNorm(3).weight, torch.ones(3))


def test_skipping_may_be_nested():
    with skip_initialization():
        with skip_initialization():
            pass
        before = torch.get_rng_state()
        layers.Linear(3, 3)
        assert torch.equal(torch.get_rng_state(), before)


def test_skipping_holds_for_one_thread_alone():
    built = []
    with skip_initialization():
        thread = threading.Thread(target=lambda: built.append(layers.LayerNorm(3)))
        thread.start()
        thread.join()
    assert torch.equal(built[0].weight, torch.ones(3))


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_layer_prints_in_short_lines(build):
    assert all(len(line) <= 100 for line in repr(build()).splitlines())
