"""Virtual tokens in PEFT's files: peft_type PROMPT_TUNING, one tensor `prompt_embeddings`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from modelzoo.adapters.virtual_tokens import VirtualTokens, find_table
from modelzoo.errors import ConfigError
from modelzoo.sharded import full_tensor

__all__ = ["PROMPT_TENSOR", "PROMPT_TYPE", "config_problems", "place_prompt", "written_prompt"]

PROMPT_TYPE = "PROMPT_TUNING"
PROMPT_TENSOR = "prompt_embeddings"


def written_prompt(part: VirtualTokens, sizes: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensor of virtual tokens, whole, and what adapter_config.json says of it. Collective on a sharded model.

    Args:
        part: The virtual tokens.
        sizes: Of the model's config; PEFT finds them in most configs of transformers, but not in all.
    """
    vectors = full_tensor(part.vectors).detach().cpu()
    return {PROMPT_TENSOR: vectors}, {
        "peft_type": PROMPT_TYPE,
        "num_virtual_tokens": part.num_tokens,
        "token_dim": vectors.shape[1],
        "num_transformer_submodules": 1,
        "num_attention_heads": sizes.get("num_heads"),
        "num_layers": sizes.get("num_layers"),
        "prompt_tuning_init": "RANDOM",
        "inference_mode": True,
    }


def config_problems(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with adapter_config.json."""
    problems = []
    count, stacks = values.get("num_virtual_tokens"), values.get("num_transformer_submodules")
    if not isinstance(count, int) or count < 1:
        problems.append(f"num_virtual_tokens: expected a whole number from 1, found {count!r:.40}")
    if stacks not in (None, 1, 2):
        problems.append(f"num_transformer_submodules: expected 1 or 2, found {stacks!r:.40}")
    return problems


def place_prompt(
    model: nn.Module, values: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[str, VirtualTokens | None, Tensor | None, list[str]]:
    """Return the name of a model's token table, its virtual tokens, their values, and what does not fit.

    For an encoder-decoder PEFT keeps as many vectors again, which it never reads; they are left out.

    Args:
        model: The base.
        values: Of adapter_config.json.
        tensors: Of the file.
    """
    try:
        name, table = find_table(model)
    except ConfigError as error:
        return "", None, None, [str(error)]
    count, given = values["num_virtual_tokens"], tensors.get(PROMPT_TENSOR)
    found = "nothing" if given is None else list(given.shape)
    stacks = values.get("num_transformer_submodules") or (2 if values.get("task_type") == "SEQ_2_SEQ_LM" else 1)
    wanted = [count * stacks, table.embedding_dim]
    if given is None or found != wanted:
        return name, None, None, [f"{PROMPT_TENSOR}: expected {wanted}, found {found}"]
    return name, VirtualTokens(count, table), given[:count].contiguous(), []
