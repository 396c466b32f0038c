"""CPM-1 (Zhang et al., 2020) in ModelCenter's layout: its names and fields beside ours. Tables only.

transformers has no such model; a folder holds ModelCenter's names, and its config.json ModelCenter's fields and a model_type.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, size
from modelzoo.converters.cpm_names import ACTIVATION, REQUIRE, dropout_fields, size_fields, stack_rules
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Rule

__all__ = ["CPM1"]

_FIELDS = (
    *size_fields(vocab_size=30968, hidden_size=768, num_heads=12, head_size=64, intermediate_size=256, pad_token_id=0),
    Field("num_layers", "num_layers", 12, size(2**12)),
    Field("num_buckets", "position_bias_num_buckets", 32, size(2**16)),
    Field("max_distance", "position_bias_max_distance", 128, size(2**24)),
    Field("norm_bias", "norm_bias", False, boolean),
    Field("attention_bias", "att_bias", False, boolean),
    Field("feed_forward_bias", "ffn_bias", False, boolean),
    Field("tie_word_embeddings", "tied", False, boolean),
)
_HEAD = Rule("head.weight", "output_projection.weight")


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    has_head = task == "causal_lm" and not tied
    rules = (
        Rule("embeddings.token.weight", "input_embedding.weight"),
        Rule("decoder.position.weight", "position_bias.relative_attention_bias"),
        *stack_rules("decoder", "encoder", is_gated=bool(values.get("is_gated", True))),
    )
    ignore = () if has_head else (Ignore("output_projection.*", "the head of an untied language model"),)
    return Mapping(rules + ((_HEAD,) if has_head else ()), ignore=ignore)


CPM1 = FamilyConverter(
    model_type="cpm1",
    table=ConfigTable(
        _FIELDS,
        (*REQUIRE, Require("pos_bias_type", ("relative",), "other positions are not built for CPM-1")),
        (ACTIVATION, dropout_fields("hidden_dropout", "attention_dropout")),
    ),
    architectures={"base": "CPM1Model", "causal_lm": "CPM1ForCausalLM"},
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "cpm1"."""
