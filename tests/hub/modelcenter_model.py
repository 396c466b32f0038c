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


def window(size: int, reach: int) -> Tensor:
    """A token sees so many to each side."""
    distance = torch.arange(size)[:, None] - torch.arange(size)
    return torch.zeros(size, size).masked_fill(distance.abs() > reach, -math.inf)


def bert_logits(tensors: Tensors, ids: Tensor, first_position: int, mask: Tensor | float = 0) -> Tensor:
    """The language-model head over post-norm blocks."""
    positions = tensors["position_embedding.weight"][first_position : first_position + ids.shape[1]]
    x = tensors["input_embedding.weight"][ids] + positions + tensors["token_type_embedding.weight"][0]
    for layer in range(3):
        name = f"encoder.layers.{layer}"
        x = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, 1e-12)
        x = x + attention(tensors, f"{name}.self_att.self_attention", x, x, 4, bias=mask, scale=True)
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


def vit_logits(tensors: Tensors, pixels: Tensor) -> Tensor:
    """Patches by convolution, a class token in front, pre-norm blocks, the head on the first token."""
    patches = F.conv2d(pixels, tensors["patch_embed.proj.weight"], tensors["patch_embed.proj.bias"], stride=4)
    x = torch.cat([tensors["patch_embed.cls_token"].expand(len(pixels), 1, -1), patches.flatten(2).transpose(1, 2)], 1)
    x = x + tensors["patch_embed.pos_embed"]
    for layer in range(3):
        name = f"blocks.layers.{layer}"
        y = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, 1e-5)
        x = x + attention(tensors, f"{name}.self_att.self_attention", y, y, 4, bias=0, scale=True)
        x = x + feed_forward(tensors, f"{name}.ffn.ffn", norm(tensors, f"{name}.ffn.layernorm_before_ffn", x, 1e-5), F.gelu)
    return linear(tensors, "head", norm(tensors, "blocks.output_layernorm", x, 1e-5)[:, 0])


def llama_logits(tensors: Tensors, ids: Tensor) -> Tensor:
    """Grouped keys turned by half-split rotary phases, gated feed-forward."""
    size = ids.shape[1]
    phases = torch.arange(size)[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4)
    turn = [torch.cat([part, part], -1) for part in (phases.cos(), phases.sin())]
    return _rotary_logits(tensors, ids, 1e-6, 2, lambda x: x * turn[0] + torch.cat([-x[..., 2:], x[..., :2]], -1) * turn[1], F.silu)


def gptj_logits(tensors: Tensors, ids: Tensor) -> Tensor:
    """Both sublayers of a block side by side, heads turned in neighbouring pairs, an output layer with a bias."""
    size = ids.shape[1]
    phases = torch.arange(size)[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4)
    cos, sin = phases.cos().repeat_interleave(2, -1), phases.sin().repeat_interleave(2, -1)

    def turned(x: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin

    return _rotary_logits(tensors, ids, 1e-5, 4, turned, lambda z: F.gelu(z, approximate="tanh"), is_parallel=True)


def _rotary_logits(
    tensors: Tensors, ids: Tensor, eps: float, groups: int, turn: Callable[[Tensor], Tensor], act: Callable[[Tensor], Tensor],
    *, is_parallel: bool = False,
) -> Tensor:  # fmt: skip
    x = tensors["input_embedding.weight"][ids]
    for layer in range(3):
        name = f"encoder.layers.{layer}"
        y = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, eps)
        inner = f"{name}.self_att.self_attention"
        q = turn(linear(tensors, f"{inner}.project_q", y).unflatten(-1, (4, -1)).transpose(1, 2))
        k, v = (linear(tensors, f"{inner}.project_{kind}", y).unflatten(-1, (groups, -1)).transpose(1, 2) for kind in "kv")
        k, v = (part.repeat_interleave(4 // groups, 1) for part in (turn(k), v))
        mixed = (q @ k.transpose(-1, -2) / 2 + causal(ids.shape[1])).softmax(-1) @ v
        attended = linear(tensors, f"{inner}.attention_out", mixed.transpose(1, 2).flatten(-2))
        before = x
        x = x + attended
        z = norm(tensors, f"{name}.ffn.layernorm_before_ffn", before if is_parallel else x, eps)
        x = x + feed_forward(tensors, f"{name}.ffn.ffn", z, act)
    return linear(tensors, "output_projection", norm(tensors, "encoder.output_layernorm", x, eps))


def opt_logits(tensors: Tensors, ids: Tensor) -> Tensor:
    """Pre-norm blocks whose positions count from 2."""
    x = tensors["input_embedding.weight"][ids] + tensors["position_embedding.weight"][2 : 2 + ids.shape[1]]
    for layer in range(3):
        name = f"decoder.layers.{layer}"
        y = norm(tensors, f"{name}.self_att.layernorm_before_attention", x, 1e-5)
        x = x + attention(tensors, f"{name}.self_att.self_attention", y, y, 4, bias=causal(ids.shape[1]), scale=True)
        x = x + feed_forward(tensors, f"{name}.ffn.ffn", norm(tensors, f"{name}.ffn.layernorm_before_ffn", x, 1e-5), F.relu)
    return F.linear(norm(tensors, "decoder.output_layernorm", x, 1e-5), tensors["input_embedding.weight"])


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
