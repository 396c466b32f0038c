"""What ModelCenter computes from its tensors, written naively: every sublayer has its norm before it.

`post_norm`: the norm's output is also what the sublayer's result is added to, as in BERT.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Tensors = dict[str, Tensor]


def linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def norm(tensors: Tensors, name: str, x: Tensor, eps: float) -> Tensor:
    """A layer norm, or a norm by the root of the mean square where there is no bias."""
    if f"{name}.bias" in tensors:
        return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * tensors[f"{name}.weight"]


def attention(tensors: Tensors, name: str, x: Tensor, memory: Tensor, heads: int, *, bias: Tensor | float, scale: bool) -> Tensor:
    q = linear(tensors, f"{name}.project_q", x).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = linear(tensors, f"{name}.project_k", memory).unflatten(-1, (heads, -1)).transpose(1, 2)
    v = linear(tensors, f"{name}.project_v", memory).unflatten(-1, (heads, -1)).transpose(1, 2)
    scores = q @ k.transpose(-1, -2) / (math.sqrt(q.shape[-1]) if scale else 1) + bias
    return linear(tensors, f"{name}.attention_out", (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


def feed_forward(tensors: Tensors, name: str, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    if f"{name}.w_in.w.weight" in tensors:
        return linear(tensors, f"{name}.w_out", act(linear(tensors, f"{name}.w_in.w", x)))
    gate = act(linear(tensors, f"{name}.w_in.w_0", x))
    return linear(tensors, f"{name}.w_out", gate * linear(tensors, f"{name}.w_in.w_1", x))


def causal(size: int) -> Tensor:
    return torch.full((size, size), -math.inf).triu(1)


def bert_logits(tensors: Tensors, ids: Tensor, first_position: int) -> Tensor:
    """The language-model head over post-norm blocks."""
    positions = tensors["position_embedding.weight"][first_position : first_position + ids.shape[1]]
    x = tensors["input_embedding.weight"][ids] + positions + tensors["token_type_embedding.weight"][0]
    for layer in range(3):
        name = f"encoder.layers.{layer}"
        x = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, 1e-12)
        x = x + attention(tensors, f"{name}.self_att.self_attention", x, x, 4, bias=0, scale=True)
        x = norm(tensors, f"{name}.ffn.layernorm_before_ffn", x, 1e-12)
        x = x + feed_forward(tensors, f"{name}.ffn.ffn", x, F.gelu)
    x = norm(tensors, "encoder.output_layernorm", x, 1e-12)
    x = norm(tensors, "lm_head.layer_norm", F.gelu(linear(tensors, "lm_head.dense", x)), 1e-12)
    return F.linear(x, tensors["input_embedding.weight"], tensors["lm_head.decoder.bias"])


def gpt2_logits(tensors: Tensors, ids: Tensor) -> Tensor:
    """Pre-norm blocks under a causal mask; the padding row's logit is there too."""
    x = tensors["input_embedding.weight"][ids] + tensors["position_embedding.weight"][: ids.shape[1]]
    for layer in range(3):
        name = f"encoder.layers.{layer}"
        y = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, 1e-5)
        x = x + attention(tensors, f"{name}.self_att.self_attention", y, y, 4, bias=causal(ids.shape[1]), scale=True)
        y = norm(tensors, f"{name}.ffn.layernorm_before_ffn", x, 1e-5)
        x = x + feed_forward(tensors, f"{name}.ffn.ffn", y, lambda z: F.gelu(z, approximate="tanh"))
    return F.linear(norm(tensors, "encoder.output_layernorm", x, 1e-5), tensors["input_embedding.weight"])


def _buckets(size: int, *, bidirectional: bool) -> Tensor:
    """Buckets of distances below 8, which have one each."""
    distance = torch.arange(size)[:, None] - torch.arange(size)[None, :]
    if bidirectional:
        return distance.abs() + 16 * (distance < 0)
    return distance.clamp(min=0)


def t5_logits(tensors: Tensors, ids: Tensor, decoder_ids: Tensor, act: Callable[[Tensor], Tensor], *, eps: float) -> Tensor:
    """Encoder and decoder; `eps` is that of norms over the divided residual. No factor on the logits (`scale` is false)."""
    memory = None
    for side, tokens in (("encoder", ids), ("decoder", decoder_ids)):
        table = tensors[f"position_bias_{side[:3]}.relative_attention_bias"]
        bias = table[_buckets(tokens.shape[1], bidirectional=side == "encoder")].permute(2, 0, 1)
        bias = bias if side == "encoder" else bias + causal(tokens.shape[1])
        x = tensors["input_embedding.weight"][tokens]
        for layer in range(2 if side == "encoder" else 3):
            name = f"{side}.layers.{layer}"
            y = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, eps)
            x = x + attention(tensors, f"{name}.self_att.self_attention", y, y, 4, bias=bias, scale=False)
            if memory is not None:
                y = norm(tensors, f"{name}.cross_att.layernorm_before_attention", x, eps)
                x = x + attention(tensors, f"{name}.cross_att.self_attention", y, memory, 4, bias=0, scale=False)
            x = x + feed_forward(tensors, f"{name}.ffn.ffn", norm(tensors, f"{name}.ffn.layernorm_before_ffn", x, eps), act)
        x = norm(tensors, f"{side}.output_layernorm", x, eps)
        memory = x
    return F.linear(x, tensors.get("output_projection.weight", tensors["input_embedding.weight"]))
