"""What a T5 is made of: its blocks, its position bias, what its decoder reads, and the spread of its first values."""

import torch
from torch import Tensor

from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import (
    Attention,
    CrossAttentionBlock,
    FeedForward,
    FeedForwardBlock,
    RelativePositionBias,
    RMSNorm,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.models.losses import IGNORED
from modelzoo.models.t5_config import T5Config

__all__ = ["at_last", "block", "check_dtype", "initial_std", "position_bias", "shifted"]


def check_dtype(weight: Tensor) -> None:
    """Refuse to compute in float16, by the weights' dtype or by autocast.

    T5 was trained in bfloat16, whose range is float32's: in the published models the feed-forward networks' inner features and
    outputs exceed float16's 65,504 and become infinite, then NaN. transformers keeps one of the two maps in float32 and clamps.

    Raises:
        ConfigError: It would be float16.
    """
    kind = weight.device.type
    is_cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
    if weight.dtype == torch.float16 or is_cast:
        raise ConfigError(
            "T5 cannot run in float16: its feed-forward networks go beyond 65504 there and become infinite; load it with "
            "dtype='bfloat16' or dtype='float32'"
        )


def position_bias(config: T5Config, *, is_bidirectional: bool) -> RelativePositionBias:
    """Return the bias that the blocks of a stack share."""
    return RelativePositionBias(
        config.num_heads, num_buckets=config.num_buckets, max_distance=config.max_distance, is_bidirectional=is_bidirectional
    )


def block(config: T5Config, *, is_decoder: bool) -> TransformerBlock:
    """Return a pre-norm block without biases whose scores are not scaled; a decoder's attends to a context too."""

    def attention(*, is_causal: bool) -> Attention:
        return Attention(
            config.hidden_size,
            config.num_heads,
            head_size=config.head_size,
            bias=False,
            scale=1.0,
            dropout=config.dropout,
            is_causal=is_causal,
        )

    def norm() -> RMSNorm:
        return RMSNorm(config.hidden_size, config.norm_eps)

    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        is_gated=config.is_gated,
        bias=False,
        dropout=config.dropout,
    )
    own = SelfAttentionBlock(attention(is_causal=is_decoder), norm(), dropout=config.dropout)
    cross = CrossAttentionBlock(attention(is_causal=False), norm(), dropout=config.dropout) if is_decoder else None
    return TransformerBlock(own, FeedForwardBlock(feed_forward, norm(), dropout=config.dropout), cross)


def shifted(ids: Tensor, start: int, pad: int) -> Tensor:
    """Return ids one place later behind a start token; what is no target becomes padding.

    Args:
        ids: (B, T) int64; -100 for no target.
        start: First id.
        pad: In the place of -100.
    """
    later = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)
    return later.masked_fill(later == IGNORED, pad)


def at_last(hidden: Tensor, ids: Tensor, token_id: int) -> Tensor:
    """Return (B, D) features at each row's last end token.

    Args:
        hidden: (B, T, D) float.
        ids: (B, T) int64.
        token_id: Of the end token.

    Raises:
        DataError: A row has none.
    """
    is_end = ids == token_id
    if not is_end.any(1).all():
        row = int((~is_end.any(1)).nonzero()[0])
        raise DataError(f"input_ids: row {row} has no end token {token_id}; the classifier reads the last one")
    last = (torch.arange(ids.shape[1], device=ids.device) * is_end).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def initial_std(name: str, config: T5Config) -> float | None:
    """Return the standard deviation of a weight before `initializer_range`, or None where the layer's own rule holds."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_size
    by_ending = {
        "query.weight": (hidden * config.head_size) ** -0.5,
        "key.weight": hidden**-0.5,
        "value.weight": hidden**-0.5,
        "sublayer.output.weight": heads**-0.5,
        "up.weight": hidden**-0.5,
        "gate.weight": hidden**-0.5,
        "down.weight": config.intermediate_size**-0.5,
        "position.weight": hidden**-0.5,
        "head.dense.weight": hidden**-0.5,
        "head.output.weight": hidden**-0.5,
        "token.weight": 1.0,
        "head.weight": 1.0,
    }
    return next((std for ending, std in by_ending.items() if name.endswith(ending)), None)
