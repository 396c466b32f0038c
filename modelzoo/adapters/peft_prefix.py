"""Prefixes in PEFT's files: peft_type PREFIX_TUNING, one tensor `prompt_embeddings` of (P, L * 2 * K * H).

It holds the keys and values themselves, whether they were projected or not. PEFT gives block i of an encoder-decoder's decoder the
keys and values of pair 2 i, counted round: with as many pairs as blocks, two blocks share one and every second pair is never read.
A file written here has twice as many pairs, the unread ones zero, so that each block has its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo.adapters.peft_prompts import PROMPT_TENSOR, config_problems
from modelzoo.adapters.prefix import Prefix, find_stack, new_prefix, projected, sizes_of
from modelzoo.errors import ConfigError
from modelzoo.hub.files import shown
from modelzoo.sharded import full_tensor

__all__ = ["PREFIX_TYPE", "place_prefix", "prefix_problems", "written_prefix"]

PREFIX_TYPE = "PREFIX_TUNING"


def written_prefix(part: Prefix, task: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensor of a prefix, whole, and what adapter_config.json says of it. Collective on a sharded model.

    Args:
        part: The prefix.
        task: Of the model.
    """
    values = projected({name: full_tensor(each).detach().cpu() for name, each in part.named_parameters()})
    width, count = part.num_heads * part.head_size, part.num_layers
    if task == "seq2seq_lm":
        pairs = values.view(part.num_tokens, count, 1, 2 * width)
        values, count = torch.cat([pairs, torch.zeros_like(pairs)], dim=2).flatten(1), 2 * count
    return {PROMPT_TENSOR: values.contiguous()}, {
        "peft_type": PREFIX_TYPE,
        "num_virtual_tokens": part.num_tokens,
        "token_dim": width,
        "num_transformer_submodules": 2 if task == "seq2seq_lm" else 1,
        "num_attention_heads": part.num_heads,
        "num_layers": count,
        "encoder_hidden_size": width,
        "prefix_projection": False,
        "inference_mode": True,
    }


def prefix_problems(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with adapter_config.json."""
    problems = config_problems(values)
    for name in ("num_layers", "token_dim", "num_attention_heads"):
        if not isinstance(values.get(name), int) or values[name] < 1:
            problems.append(f"{name}: expected a whole number from 1, found {shown(repr(values.get(name)))}")
    return problems


def place_prefix(
    model: nn.Module, task: str, values: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[str, Prefix | None, Tensor | None, list[str]]:
    """Return the name of a model's stack, its prefix, the values of it, and what does not fit.

    Args:
        model: The base.
        task: Of the base.
        values: Of adapter_config.json.
        tensors: Of the file.
    """
    try:
        name, stack = find_stack(model)
    except ConfigError as error:
        return "", None, None, [str(error)]
    blocks, num_heads, head_size = sizes_of(stack)
    count, pairs, width = values["num_virtual_tokens"], values["num_layers"], num_heads * head_size
    given = tensors.get(PROMPT_TENSOR)
    found = "nothing" if given is None else list(given.shape)
    if task == "seq2seq_lm" and values.get("num_transformer_submodules") not in (None, 2):
        return name, None, None, ["num_transformer_submodules: expected 2 for an encoder-decoder, found 1"]
    is_counted_round = task == "seq2seq_lm" and pairs >= blocks
    wanted = [count, 2 * (pairs if is_counted_round else blocks) * width]
    if given is None or found != wanted:
        return name, None, None, [f"{PROMPT_TENSOR}: expected {wanted}, found {found}"]
    heads = (values["token_dim"], values["num_attention_heads"])
    if heads != (width, num_heads):
        what = f"token_dim, num_attention_heads: expected {width}, {num_heads}"
        return name, None, None, [f"{what} as the blocks' keys have, found {heads[0]}, {heads[1]}"]
    if is_counted_round:
        chosen = torch.tensor([2 * block % pairs for block in range(blocks)])
        given = given.view(count, pairs, 2 * width).index_select(1, chosen).flatten(1)
    return name, new_prefix(stack, count), given.contiguous(), []
