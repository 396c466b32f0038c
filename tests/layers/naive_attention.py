"""Attention written as slowly and plainly as possible: the reference of the layers' tests."""

import torch
from torch import Tensor

from modelzoo.layers import Attention


def fill(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Give every parameter values large enough that a wrong bias, scale or norm shows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return module


def naive_attention(
    layer: Attention, queries: Tensor, context: Tensor, allowed: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Attend from (T, D) to (S, C), head by head; `allowed` (T, S) bool, `bias` (N, T, S)."""
    size, heads = layer.head_size, []
    q, k, v = layer.query(queries), layer.key(context), layer.value(context)
    for head in range(layer.num_heads):
        shared = head // (layer.num_heads // layer.num_key_value_heads)
        scores = layer.scale * q[:, head * size : (head + 1) * size] @ k[:, shared * size : (shared + 1) * size].T
        scores = scores if bias is None else scores + bias[head]
        scores = scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))
        heads.append(torch.softmax(scores, -1) @ v[:, shared * size : (shared + 1) * size])
    return layer.output(torch.cat(heads, -1))
