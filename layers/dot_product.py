"""The scaled dot product of queries and keys, and the mean of the values by it: torch's fused kernel, or cheap dropout on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.layers.dropout import dropout as drop

__all__ = ["dot_product_attention"]


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
    is_causal: bool,
) -> Tensor:
    """Return softmax(scale * q kᵀ + bias) v; scores and softmax are float32 when the input is half precision.

    Args:
        query: (B, N, T, H) float.
        key: (B, K, S, H) float, K a divisor of N.
        value: (B, K, S, H) float.
        mask: Bool that broadcasts to (B, N, T, S), True where a query may attend; None for everywhere.
        bias: Float that broadcasts to (B, N, T, S), added to the scores; None for none.
        scale: Factor on q kᵀ.
        dropout: Probability of dropping a weight, now: 0 in evaluation.
        is_causal: Query i sees keys 0 to i; then without mask and bias.

    Returns:
        (B, N, T, H) float.
    """
    if dropout > 0 and query.device.type == "cpu":
        return _with_cheap_dropout(query, key, value, mask, bias, scale, dropout, is_causal)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _with_cheap_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
    is_causal: bool,
) -> Tensor:
    """Drop weights on a CPU, where torch's fused kernel takes no dropout and its fallback draws slow masks."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    return drop(weights, dropout) @ value
