"""CPM-3 (OpenBMB, 2022) in ModelCenter's layout: its names and fields beside ours. Tables only.

transformers has no such model; a folder holds ModelCenter's names, and its config.json ModelCenter's fields and a model_type.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, size
from modelzoo.converters.cpm_names import ACTIVATION, REQUIRE, dropout_fields, size_fields, stack_rules
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Rule

__all__ = ["CPM3"]

_SIZES = size_fields(vocab_size=30720, hidden_size=4096, num_heads=64, head_size=64, intermediate_size=10240, pad_token_id=0)
_TRUE = {"length_scale": True, "scale_attention": True, "initializer_range": 1.0}  # defaults that CPM-3 alone has
_FIELDS = (
    *(replace(field, default=_TRUE.get(field.ours, field.default)) for field in _SIZES),
    Field("num_layers", "num_layers", 32, size(2**12)),
    Field("num_buckets", "position_bias_num_buckets", 512, size(2**16)),
    Field("max_distance", "position_bias_max_distance", 2048, size(2**24)),
    Field("norm_bias", "norm_bias", False, boolean),
    Field("attention_bias", "att_bias", False, boolean),
    Field("feed_forward_bias", "ffn_bias", False, boolean),
    Field("tie_word_embeddings", "tied", True, boolean),
    Field("prompt_types", "prompt_types", 32, size(2**16)),
    Field("prompt_length", "prompt_length", 64, size(2**16)),
    Field("segment_types", "segment_types", 34, size(2**12)),
)
_HEAD = Rule("head.weight", "output_projection.weight")


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    has_head = task == "causal_lm" and not tied
    rules = (
        Rule("embeddings.token.weight", "input_embedding.weight"),
        Rule("embeddings.prompt.weight", "prompt_embedding.weight"),
        Rule("decoder.position.weight", "position_bias.relative_attention_bias"),
        *stack_rules("decoder", "encoder", is_gated=bool(values.get("is_gated", True))),
    )
    ignore = () if has_head else (Ignore("output_projection.*", "the head of an untied language model"),)
    return Mapping(rules + ((_HEAD,) if has_head else ()), ignore=ignore)


CPM3 = FamilyConverter(
    model_type="cpm3",
    table=ConfigTable(
        _FIELDS,
        (
            *REQUIRE,
            Require("pos_bias_type", ("relative",), "other positions are not built for CPM-3"),
            Require("absolute_inner_segment", (True,), "a bias without distances is not built"),
        ),
        (ACTIVATION, dropout_fields("hidden_dropout", "attention_dropout")),
    ),
    architectures={"base": "CPM3Model", "causal_lm": "CPM3ForCausalLM"},
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "cpm3"."""
