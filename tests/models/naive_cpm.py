"""CPM's blocks as plainly as possible, from the formulas of the papers and of ModelCenter: the reference of the tests."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(weights: Weights, name: str, hidden: Tensor, *, length_scale: bool) -> Tensor:
    """x Wᵀ, divided by the root of x's width if so, plus a bias where there is one."""
    mapped = hidden @ weights[f"{name}.weight"].T
    if length_scale:
        mapped = mapped / math.sqrt(hidden.shape[-1])
    return mapped + weights[f"{name}.bias"] if f"{name}.bias" in weights else mapped


def norm(weights: Weights, name: str, hidden: Tensor, eps: float) -> Tensor:
    """RMS norm, or layer norm where there is a bias."""
    if f"{name}.bias" in weights:
        centred = hidden - hidden.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return hidden / torch.sqrt(hidden.square().mean(-1, keepdim=True) + eps) * weights[f"{name}.weight"]


def bucket(distance: int, num_buckets: int, max_distance: int, *, both_sides: bool = True) -> int:
    """The bucket of key minus query, one number at a time."""
    offset = 0
    if both_sides:
        num_buckets //= 2
        offset = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return offset + distance
    return offset + min(
        exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)), num_buckets - 1
    )


def visible(length: int, context: Tensor, spans: Tensor | None = None) -> Tensor:
    """(T, T) bool of one text: who sees whom."""
    result = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        for key in range(length):
            seen = bool(context[key]) or (not context[query] and key <= query)
            result[query, key] = seen and (spans is None or bool(spans[query] == spans[key]))
    return result


def attention(
    weights: Weights, name: str, queries: Tensor, keys: Tensor, config: Mapping[str, Any], allowed: Tensor, bias: Tensor | None
) -> Tensor:
    """Softmax attention of one text, head by head; `allowed` (T, S), `bias` (N, T, S)."""
    scaled, size = config["length_scale"], config["dim_head"]
    q, k, v = (
        linear(weights, f"{name}.project_{letter}", source, length_scale=scaled)
        for letter, source in (("q", queries), ("k", keys), ("v", keys))
    )
    heads = []
    for head in range(config["num_heads"]):
        part = slice(head * size, (head + 1) * size)
        scores = q[:, part] @ k[:, part].T / (math.sqrt(size) if config["attn_scale"] else 1.0)
        scores = scores if bias is None else scores + bias[head]
        weights_of_keys = torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1)
        heads.append(weights_of_keys @ v[:, part])
    return linear(weights, f"{name}.attention_out", torch.cat(heads, -1), length_scale=scaled)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


def feed_forward(weights: Weights, name: str, hidden: Tensor, config: Mapping[str, Any]) -> Tensor:
    """act(x W_0ᵀ) times x W_1ᵀ, or act(x Wᵀ); then W_out."""
    scaled, kind = config["length_scale"], config["ffn_activate_fn"]
    act = ACTIVATIONS[kind.removeprefix("gated_")]
    if kind.startswith("gated_"):
        gate = act(linear(weights, f"{name}.w_in.w_0", hidden, length_scale=scaled))
        inner = gate * linear(weights, f"{name}.w_in.w_1", hidden, length_scale=scaled)
    else:
        inner = act(linear(weights, f"{name}.w_in.w", hidden, length_scale=scaled))
    return linear(weights, f"{name}.w_out", inner, length_scale=scaled)


def stack(
    weights: Weights,
    name: str,
    hidden: Tensor,
    config: Mapping[str, Any],
    allowed: Tensor,
    bias: Tensor | None,
    *,
    context: Tensor | None = None,
    sum_scale: float = 1.0,
) -> Tensor:
    """All blocks of one text and the last norm; `context` (S, D) for a decoder that reads an encoder's output."""
    eps = config["norm_eps"]
    layers = 1 + max(int(key.split(".")[2]) for key in weights if key.startswith(f"{name}.layers."))
    for layer in range(layers):
        block = f"{name}.layers.{layer}"
        normed = norm(weights, f"{block}.self_att.layernorm_before_attention", hidden, eps)
        hidden = (
            hidden + attention(weights, f"{block}.self_att.self_attention", normed, normed, config, allowed, bias)
        ) * sum_scale
        if context is not None:
            everything = torch.ones(len(hidden), len(context), dtype=torch.bool)
            normed = norm(weights, f"{block}.cross_att.layernorm_before_attention", hidden, eps)
            hidden = hidden + attention(weights, f"{block}.cross_att.self_attention", normed, context, config, everything, None)
        normed = norm(weights, f"{block}.ffn.layernorm_before_ffn", hidden, eps)
        hidden = (hidden + feed_forward(weights, f"{block}.ffn.ffn", normed, config)) * sum_scale
    return norm(weights, f"{name}.output_layernorm", hidden, eps)


def distance_bias(table: Tensor, queries: int, num_buckets: int, max_distance: int, *, both_sides: bool = True) -> Tensor:
    """(N, T, T) bias of the distances of one text."""
    rows = [
        [bucket(key - query, num_buckets, max_distance, both_sides=both_sides) for key in range(queries)]
        for query in range(queries)
    ]
    return table[torch.tensor(rows)].permute(2, 0, 1)


def draw(shapes: Mapping[str, tuple[int, ...]], std: float, seed: int = 0) -> dict[str, Tensor]:
    """Draw weights that are large enough for each of them to show."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        drawn[name] = (1 + 0.2 * values if name.endswith("weight") and len(shape) == 1 else values * std).requires_grad_()
    return drawn
