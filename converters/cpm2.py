"""CPM-2 (Zhang et al., 2021) in ModelCenter's layout: its names and fields beside ours. Tables only.

transformers has no such model; a folder holds ModelCenter's names, and its config.json ModelCenter's fields and a model_type.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, size, token_id
from modelzoo.converters.cpm_names import ACTIVATION, REQUIRE, block_rules, dropout_fields, size_fields
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Rule

__all__ = ["CPM2"]

_FIELDS = (
    *size_fields(vocab_size=26240, hidden_size=768, num_heads=12, head_size=64, intermediate_size=256, pad_token_id=5),
    Field("num_layers", "num_encoder_layers", 12, size(2**12)),
    Field("num_decoder_layers", "num_decoder_layers", 12, size(2**12)),
    Field("num_buckets", "position_bias_num_buckets", 32, size(2**16)),
    Field("max_distance", "position_bias_max_distance", 128, size(2**24)),
    Field("scale_decoder_outputs", "length_scale", False, boolean),
    Field("eos_token_id", "eos_token_id", 7, token_id),
    Field("decoder_start_token_id", "decoder_start_token_id", 1, token_id),
)
_REQUIRE = (
    *REQUIRE,
    Require("pos_bias_type", ("relative",), "other positions are not built for CPM-2"),
    *(Require(name, (False, None), "biases are not built for CPM-2") for name in ("norm_bias", "att_bias", "ffn_bias")),
    Require("tied", (False, None), "a head that is the token table is not built for CPM-2"),
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_gated = bool(values.get("is_gated", True))
    rules = [Rule("token.weight", "input_embedding.weight")]
    for side, bias, number in (("encoder", "position_bias_enc", "layer"), ("decoder", "position_bias_dec", "decoder_layer")):
        block = f"{side}.layers.{{{number}}}"
        rules += block_rules(block, block, is_gated=is_gated, has_context=side == "decoder")
        rules.append(Rule(f"{side}.norm.weight", f"{side}.output_layernorm.weight"))
        rules.append(Rule(f"{side}.position.weight", f"{bias}.relative_attention_bias"))
    head = (Rule("head.weight", "output_projection.weight"),) if task == "seq2seq_lm" else ()
    ignore = () if head else (Ignore("output_projection.*", "the head of the language model"),)
    return Mapping((*rules, *head), ignore=ignore)


CPM2 = FamilyConverter(
    model_type="cpm2",
    table=ConfigTable(_FIELDS, _REQUIRE, (ACTIVATION, dropout_fields("dropout"))),
    architectures={"base": "CPM2Model", "seq2seq_lm": "CPM2ForConditionalGeneration"},
    mappings=_mapping,
    sizes={"token.weight": ("vocab_size", "hidden_size"), "head.weight": ("vocab_size", "hidden_size")},
    counts={"layer": "num_layers", "decoder_layer": "num_decoder_layers"},
)
"""The converter of model_type "cpm2"."""
