"""CPM-Ant (OpenBMB, 2022): Hugging Face's names and fields beside ours. Tables only.

The table of the file has the vocabulary's rows, then those of the soft prompts; the head has the vocabulary's. A file holds both.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, number, size, token_id
from modelzoo.converters.cpm_names import dropout_fields, stack_rules
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule

__all__ = ["CPM_ANT"]

_FIELDS = (
    Field("vocab_size", "vocab_size", 30720, size(2**26)),
    Field("hidden_size", "hidden_size", 4096, size(2**17)),
    Field("num_layers", "num_hidden_layers", 48, size(2**12)),
    Field("num_heads", "num_attention_heads", 32, size(2**12)),
    Field("head_size", "dim_head", 128, size(2**12)),
    Field("intermediate_size", "dim_ff", 10240, size(2**20)),
    Field("num_buckets", "position_bias_num_buckets", 512, size(2**16)),
    Field("max_distance", "position_bias_max_distance", 2048, size(2**24)),
    Field("norm_eps", "eps", 1e-6, number(0, 1)),
    Field("initializer_range", "init_std", 1.0, number(0, 100)),
    Field("prompt_types", "prompt_types", 32, size(2**16)),
    Field("prompt_length", "prompt_length", 32, size(2**16)),
    Field("segment_types", "segment_types", 32, size(2**12)),
    Field("pad_token_id", "pad_token_id", None, token_id, lambda source: 0),
)
_RULES = (
    Rule("embeddings.token.weight", "cpmant.input_embedding.weight"),
    Rule("embeddings.segment.weight", "cpmant.segment_embedding.weight"),
    Rule("decoder.position.weight", "cpmant.position_bias.relative_attention_bias"),
    *stack_rules("decoder", "encoder", is_gated=True, prefix="cpmant."),
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    head = (Rule("head.weight", "lm_head.weight"),) if task == "causal_lm" else ()
    return Mapping(
        _RULES + head,
        Prefix("cpmant.", ("encoder", "input_embedding", "segment_embedding", "position_bias"), written=task != "base"),
        ignore=() if head else (Ignore("lm_head.*", "the head of the language model"),),
    )


CPM_ANT = FamilyConverter(
    model_type="cpmant",
    table=ConfigTable(_FIELDS, (), (dropout_fields("hidden_dropout", "attention_dropout"),)),
    architectures={"base": "CpmAntModel", "causal_lm": "CpmAntForCausalLM"},
    mappings=_mapping,
    sizes={
        "head.weight": ("vocab_size", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "cpmant"."""
