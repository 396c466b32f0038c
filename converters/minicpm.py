"""MiniCPM 1 and 2: the names and fields of its own configuration and modeling files beside ours. Tables only.

Tensors are named as LLaMA's.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, Require, boolean, number, size
from modelzoo.converters.llama import REQUIRE, llama_family, llama_fields
from modelzoo.converters.rope import rope
from modelzoo.errors import ConfigError

__all__ = ["MINICPM"]


def _read_head_size(source: MappingABC[str, Any]) -> dict[str, Any]:
    """MiniCPM has no field for the size of a head."""
    hidden_size, heads = source.get("hidden_size", 4096), source.get("num_attention_heads", 32)
    if hidden_size % heads:
        raise ConfigError(f"num_attention_heads: expected a divisor of hidden_size={hidden_size}, found {heads}")
    return {"head_size": hidden_size // heads}


_TABLE = ConfigTable(
    (
        *(field for field in llama_fields() if field.ours != "head_size"),
        Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
        Field("attention_bias", "attention_bias", False, boolean),
        Field("output_bias", "attention_bias", False, boolean),
        Field("embedding_scale", "scale_emb", 1, number(0, 1e6)),
        Field("depth_scale", "scale_depth", 1, number(0, 1e6)),
        Field("base_size", "dim_model_base", 1, size(2**17)),
    ),
    (
        *REQUIRE,
        Require("head_dim", (None,), "MiniCPM has no such field; a head's size is hidden_size / num_attention_heads"),
        Require("num_experts", (None, 0), "MiniCPM's mixture of experts is not built"),
        Require("sparse_config", (None,), "the sparse attention of MiniCPM 4.1 is not built"),
    ),
    (rope(), Derived(_read_head_size, lambda values, result: None)),
)

MINICPM = replace(
    llama_family("minicpm", "MiniCPM", _TABLE),
    architectures={
        "base": "MiniCPMModel",
        "causal_lm": "MiniCPMForCausalLM",
        "classification": "MiniCPMForSequenceClassification",
    },
)
"""The converter of model_type "minicpm"."""
