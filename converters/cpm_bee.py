"""CPM-Bee (OpenBMB, 2023): the names and fields of its files on the Hugging Face hub beside ours. Tables only.

transformers no longer has this model. The head is the token table; a file may hold it a second time.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, Require, number, size, token_id
from modelzoo.converters.cpm_names import dropout_fields, stack_rules
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied
from modelzoo.errors import ConfigError

__all__ = ["CPM_BEE"]

_FIELDS = (
    Field("vocab_size", "vocab_size", 30720, size(2**26)),
    Field("hidden_size", "hidden_size", 4096, size(2**17)),
    Field("num_layers", "num_hidden_layers", 32, size(2**12)),
    Field("num_heads", "num_attention_heads", 64, size(2**12)),
    Field("head_size", "dim_head", 64, size(2**12)),
    Field("intermediate_size", "dim_ff", 10240, size(2**20)),
    Field("num_buckets", "position_bias_num_buckets", 256, size(2**16)),
    Field("num_segment_buckets", "position_bias_num_segment_buckets", 32, size(2**16)),
    Field("max_distance", "position_bias_max_distance", 2048, size(2**24)),
    Field("distance_scale", "distance_scale", 16, number(0, 1e6)),
    Field("norm_eps", "eps", 1e-6, number(0, 1)),
    Field("initializer_range", "init_std", 1.0, number(0, 100)),
    Field("pad_token_id", "pad_token_id", None, token_id, lambda source: 0),
)


def _read_pruning(source: MappingABC[str, Any]) -> dict[str, Any]:
    """The list of pruned modules has an entry for each block, false where nothing is pruned."""
    pruned = source.get("mask_modules")
    if pruned and any(any(entry) if isinstance(entry, list | tuple) else entry for entry in pruned):
        raise ConfigError(f"mask_modules: expected null, or false throughout, found {pruned!r:.80}; pruned blocks are not built")
    return {}


_RULES = (
    Rule("embeddings.token.weight", "cpmbee.input_embedding.weight"),
    Rule("decoder.position.weight", "cpmbee.position_bias.relative_attention_bias"),
    *stack_rules("decoder", "encoder", is_gated=True, prefix="cpmbee."),
)
_HEAD = Tied("lm_head.weight", "cpmbee.input_embedding.weight")


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_base = task == "base"
    return Mapping(
        _RULES,
        Prefix("cpmbee.", ("encoder", "input_embedding", "position_bias"), written=not is_base),
        ignore=(Ignore("lm_head.*", "the head of the language model"),) if is_base else (),
        tied=() if is_base else (_HEAD,),
    )


CPM_BEE = FamilyConverter(
    model_type="cpmbee",
    table=ConfigTable(
        _FIELDS,
        (Require("tie_word_embeddings", (True, None), "a head of its own is not built for CPM-Bee"),),
        (dropout_fields("hidden_dropout", "attention_dropout"), Derived(_read_pruning, lambda values, result: None)),
    ),
    architectures={"base": "CpmBeeModel", "causal_lm": "CpmBeeForCausalLM"},
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "cpmbee"."""
