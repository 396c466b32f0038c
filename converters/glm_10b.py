"""GLM-10B (Du et al., 2022) in ModelCenter's layout (glm-10b-zh): its names and fields beside ours. Tables only.

What transformers calls glm is another architecture; here the model_type is "glm-10b". A folder holds ModelCenter's names, and its
config.json ModelCenter's fields and that model_type.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, Require, boolean, size, token_id
from modelzoo.converters.cpm_names import ACTIVATION, REQUIRE, dropout_fields, size_fields, stack_rules
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Mapping, Rule

__all__ = ["GLM_10B"]

_SIZES = size_fields(vocab_size=50048, hidden_size=1024, num_heads=16, head_size=64, intermediate_size=4096, pad_token_id=0)
_OTHER = {"norm_eps": 1e-5, "scale_attention": True, "pad_token_id": None}  # defaults that GLM alone has
_FIELDS = (
    *(replace(field, default=_OTHER.get(field.ours, field.default)) for field in _SIZES if field.ours != "length_scale"),
    Field("num_layers", "num_layers", 24, size(2**12)),
    Field("max_positions", "position_size", 1025, size(2**22)),
    Field("norm_bias", "norm_bias", True, boolean),
    Field("attention_bias", "att_bias", True, boolean),
    Field("feed_forward_bias", "ffn_bias", True, boolean),
    Field("start_token_id", "sop_tok_id", 50006, token_id),
    Field("end_token_id", "eop_tok_id", 50007, token_id),
    Field("mask_token_id", "mask_tok_id", 50008, token_id),
)


def _read_activation(source: MappingABC[str, Any]) -> dict[str, Any]:
    return ACTIVATION.read({"ffn_activate_fn": "gelu"} | dict(source))


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    return Mapping(
        (
            Rule("embeddings.token.weight", "input_embedding.weight"),
            Rule("embeddings.position.weight", "position_embedding.weight"),
            Rule("embeddings.blank.weight", "block_position_embedding.weight"),
            *stack_rules("decoder", "encoder", is_gated=bool(values.get("is_gated", False))),
        )
    )


GLM_10B = FamilyConverter(
    model_type="glm-10b",
    table=ConfigTable(
        _FIELDS,
        (
            *REQUIRE,
            Require("pos_bias_type", ("none",), "a bias of positions is not built for GLM-10B"),
            Require("length_scale", (False, None), "maps scaled by their width are not built for GLM-10B"),
            Require("tied", (True, None), "a head of its own is not built for GLM-10B"),
        ),
        (
            Derived(_read_activation, ACTIVATION.write),
            dropout_fields("hidden_dropout", "attention_dropout", "embedding_dropout", default=0.1),
        ),
    ),
    architectures={"base": "GLM10BModel", "causal_lm": "GLM10BForCausalLM"},
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "embeddings.position.weight": ("max_positions", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "glm-10b"."""
