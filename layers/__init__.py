"""The transformer blocks that every model of the zoo is built from: plain modules on torch alone.

Letters in shapes: B batch, T query tokens, S key tokens, D hidden size, N heads, K key/value heads, H head size, F feed-forward
width, V vocabulary. `tokens` is the number of real tokens of a batch once its padding is dropped (see `layout`).

Reading order: layout, attention, feed_forward, moe, blocks, transformer_block, stack.
"""

from modelzoo.layers.activation import ACTIVATIONS, activation
from modelzoo.layers.attention import Attention
from modelzoo.layers.blocks import CrossAttentionBlock, FeedForwardBlock, SelfAttentionBlock
from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.dropout import Dropout
from modelzoo.layers.embedding import Embedding, LearnedPositionEmbedding
from modelzoo.layers.feed_forward import FeedForward
from modelzoo.layers.initialization import skip_initialization
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.linear import Linear
from modelzoo.layers.moe import (
    Experts,
    MixtureOfExperts,
    Router,
    Routing,
    SharedExpert,
    load_balancing_loss,
    recorded_routing,
)
from modelzoo.layers.norm import LayerNorm, RMSNorm
from modelzoo.layers.position_bias import AlibiBias, RelativePositionBias, SegmentPositionBias
from modelzoo.layers.rotary import Position, RotaryEmbedding, RotaryScaling
from modelzoo.layers.stack import Decoder, Encoder, StackAdapter
from modelzoo.layers.transformer_block import ParallelBlock, TransformerBlock
from modelzoo.layers.vocabulary import Vocabulary

__all__ = [
    "ACTIVATIONS",
    "AlibiBias",
    "Attention",
    "CrossAttentionBlock",
    "Decoder",
    "Dropout",
    "Embedding",
    "Encoder",
    "Experts",
    "FeedForward",
    "FeedForwardBlock",
    "KeyValueCache",
    "LayerNorm",
    "Layout",
    "LearnedPositionEmbedding",
    "Linear",
    "MixtureOfExperts",
    "ParallelBlock",
    "Position",
    "RMSNorm",
    "RelativePositionBias",
    "RotaryEmbedding",
    "RotaryScaling",
    "Router",
    "Routing",
    "SegmentPositionBias",
    "Selection",
    "SelfAttentionBlock",
    "SharedExpert",
    "StackAdapter",
    "TransformerBlock",
    "Vocabulary",
    "activation",
    "load_balancing_loss",
    "recorded_routing",
    "skip_initialization",
]
