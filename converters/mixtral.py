"""Mixtral and Qwen2-MoE: Hugging Face's names and fields beside ours. Tables only.

In files each expert has tensors of its own; here the experts of a layer are stacked, as in transformers' memory.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, Require, boolean, number, size
from modelzoo.converters.family import Task
from modelzoo.converters.llama import (
    FEED_FORWARD,
    LAYER,
    REQUIRE,
    THEIR_LAYER,
    llama_family,
    llama_fields,
    llama_mapping,
    optional_size,
    windows,
)
from modelzoo.converters.mapping import Mapping, Rule
from modelzoo.converters.ops import Stack
from modelzoo.converters.rope import rope
from modelzoo.errors import ConfigError

__all__ = ["MIXTRAL", "QWEN2_MOE"]

_UNTIED = Field("tie_word_embeddings", "tie_word_embeddings", False, boolean)


def _weight(value: object) -> str | None:
    return None if value == 0 and not isinstance(value, bool) else number(0, 1e6)(value)


_ROUTER_LOSS = (
    Field("has_router_loss", "output_router_logits", False, boolean),
    Field("router_loss_weight", "router_aux_loss_coef", 0.001, _weight),
)
_OURS = f"{LAYER}.feed_forward.sublayer"


def _experts(their_block: str, names: MappingABC[str, str], values: MappingABC[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of a layer's router and experts, all absent from a layer without them."""
    count = int(values.get("num_experts", 1))
    router = Rule(f"{_OURS}.router.weight", f"{their_block}.gate.weight")
    stacks = (
        Rule(f"{_OURS}.experts.{ours}", f"{their_block}.experts.{{expert}}.{theirs}.weight", Stack(count), (("expert", count),))
        for ours, theirs in names.items()
    )
    return (router, *stacks)


def _mixtral_mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    names = {"gate": "w1", "up": "w3", "down": "w2"}
    return llama_mapping(task, tied, _experts(f"{THEIR_LAYER}.block_sparse_moe", names, values), answers_under="")


MIXTRAL = llama_family(
    "mixtral",
    "Mixtral",
    ConfigTable(
        (
            *llama_fields(intermediate_size=14336, max_positions=131072, num_key_value_heads=8, norm_eps=1e-5),
            _UNTIED,
            Field("window", "sliding_window", None, optional_size),
            Field("num_experts", "num_local_experts", 8, size(2**12)),
            Field("experts_per_token", "num_experts_per_tok", 2, size(2**12)),
            *_ROUTER_LOSS,
        ),
        (*REQUIRE, Require("router_jitter_noise", (0.0, 0, None), "noise on the router's input in training is not built")),
        (rope(1000000.0),),
    ),
    _mixtral_mapping,
    {
        f"{_OURS}.router.weight": ("num_experts", "hidden_size"),
        f"{_OURS}.experts.up": ("num_experts", "intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "mixtral"."""


def _qwen_mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    block, ours, theirs = f"{THEIR_LAYER}.mlp", f"{_OURS}.shared", f"{THEIR_LAYER}.mlp.shared_expert"
    rules = (
        *FEED_FORWARD,
        *_experts(block, {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}, values),
        *(Rule(f"{ours}.feed_forward.{name}.weight", f"{theirs}.{name}_proj.weight") for name in ("gate", "up", "down")),
        Rule(f"{ours}.gate.weight", f"{theirs}_gate.weight"),
    )
    return llama_mapping(task, tied, tuple(replace(rule, is_optional=True) for rule in rules), answers_under="")


def _read_dense_layers(source: MappingABC[str, Any]) -> dict[str, Any]:
    layers = source.get("mlp_only_layers")
    if layers is None:
        return {"dense_layers": ()}
    if not isinstance(layers, list) or not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers):
        raise ConfigError(f"mlp_only_layers: expected a list of layer numbers or null, found {layers!r:.80}")
    return {"dense_layers": tuple(layers)}


def _write_dense_layers(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    result["mlp_only_layers"] = list(values["dense_layers"])


QWEN2_MOE = llama_family(
    "qwen2_moe",
    "Qwen2Moe",
    ConfigTable(
        (
            *llama_fields(
                vocab_size=151936,
                hidden_size=2048,
                num_layers=24,
                num_heads=16,
                num_key_value_heads=16,
                intermediate_size=5632,
                max_positions=32768,
            ),
            _UNTIED,
            Field("attention_bias", "qkv_bias", True, boolean),
            Field("num_experts", "num_experts", 60, size(2**12)),
            Field("experts_per_token", "num_experts_per_tok", 4, size(2**12)),
            Field("expert_size", "moe_intermediate_size", 1408, size(2**20)),
            Field("shared_expert_size", "shared_expert_intermediate_size", 5632, size(2**20)),
            Field("is_normalized", "norm_topk_prob", False, boolean),
            Field("sparse_step", "decoder_sparse_step", 1, size(2**12)),
            *_ROUTER_LOSS,
        ),
        REQUIRE,
        (
            rope(),
            windows(lambda layer, first: layer % 2 == 0 and layer < first, num_layers=24),
            Derived(_read_dense_layers, _write_dense_layers),
        ),
    ),
    _qwen_mapping,
    {
        f"{_OURS}.router.weight": ("num_experts", "hidden_size"),
        f"{_OURS}.experts.up": ("num_experts", "expert_size", "hidden_size"),
        f"{_OURS}.shared.feed_forward.up.weight": ("shared_expert_size", "hidden_size"),
        f"{_OURS}.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "qwen2_moe"."""
