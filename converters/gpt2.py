"""GPT-2 (Radford et al., 2019): Hugging Face's names and fields beside ours. Tables only.

Hugging Face keeps GPT-2's linear maps as (in_features, out_features), and query, key and value in one.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, probability, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.gpt_fields import CAUSAL_MASKS, gpt_fields
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.names import SINGLE_LABEL
from modelzoo.converters.ops import Chain, Split, Transpose

__all__ = ["GPT2"]

_FIELDS = (
    *gpt_fields(
        vocab_size=50257,
        max_positions=Field("max_positions", "n_positions", 1024, size(2**22)),
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        dropout=0.1,
    ),
    Field("classifier_dropout", "classifier_dropout", 0.1, probability()),
    Field("scale_attention", "scale_attn_weights", True, boolean),
    Field("scale_attention_by_layer", "scale_attn_by_inverse_layer_idx", False, boolean),
    Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
)

_REQUIRE = (
    Require("add_cross_attention", (False, None), "a GPT-2 that attends to an encoder is not built"),
    Require("is_encoder_decoder", (False, None), "an encoder-decoder of GPT-2s is not built"),
    Require("pruned_heads", ({}, None), "pruned heads are not built"),
    SINGLE_LABEL,
)

_OURS, _THEIRS = "decoder.layers.{layer}", "transformer.h.{layer}"
_QKV = tuple(f"{_OURS}.self_attention.sublayer.{name}" for name in ("query", "key", "value"))
_RULES = (
    Rule("embeddings.token.weight", "transformer.wte.weight"),
    Rule("embeddings.position.weight", "transformer.wpe.weight"),
    Rule(tuple(f"{name}.weight" for name in _QKV), f"{_THEIRS}.attn.c_attn.weight", Chain(Split(3, dim=1), Transpose())),
    Rule(tuple(f"{name}.bias" for name in _QKV), f"{_THEIRS}.attn.c_attn.bias", Split(3)),
    *modules(f"{_OURS}.self_attention.sublayer.output", f"{_THEIRS}.attn.c_proj", Transpose()),
    *modules(f"{_OURS}.self_attention.norm", f"{_THEIRS}.ln_1"),
    *modules(f"{_OURS}.feed_forward.sublayer.up", f"{_THEIRS}.mlp.c_fc", Transpose()),
    *modules(f"{_OURS}.feed_forward.sublayer.down", f"{_THEIRS}.mlp.c_proj", Transpose()),
    *modules(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.ln_2"),
    *modules("decoder.norm", "transformer.ln_f"),
)
_HEADS: dict[Task, tuple[Rule, ...]] = {
    "causal_lm": (Rule("head.weight", "lm_head.weight"),),
    "classification": (Rule("head.weight", "score.weight"),),
    "token_classification": modules("head.output", "classifier"),
    "question_answering": modules("head.output", "qa_outputs"),
}


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_tied = task == "causal_lm" and tied
    others = [
        name
        for name in ("lm_head", "score", "classifier", "qa_outputs")
        if not any(name in str(r.theirs) for r in _HEADS.get(task, ()))
    ]
    return Mapping(
        _RULES + (() if is_tied else _HEADS.get(task, ())),
        Prefix("transformer.", ("wte", "wpe", "h", "ln_f"), written=task != "base"),
        ignore=(*CAUSAL_MASKS, *(Ignore(f"{name}.*", "the head of another task") for name in others)),
        tied=(Tied("lm_head.weight", "transformer.wte.weight"),) if is_tied else (),
    )


GPT2 = FamilyConverter(
    model_type="gpt2",
    table=ConfigTable(_FIELDS, _REQUIRE),
    architectures={
        "base": "GPT2Model",
        "causal_lm": "GPT2LMHeadModel",
        "classification": "GPT2ForSequenceClassification",
        "token_classification": "GPT2ForTokenClassification",
        "question_answering": "GPT2ForQuestionAnswering",
    },
    also={"GPT2DoubleHeadsModel": "causal_lm"},
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "embeddings.position.weight": ("max_positions", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "gpt2"."""
