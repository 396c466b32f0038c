"""OPT (Zhang et al., 2022): Hugging Face's names and fields beside ours. Tables only."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import (
    ConfigTable,
    Derived,
    Field,
    Require,
    boolean,
    choice,
    number,
    probability,
    size,
    token_id,
)
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL
from modelzoo.errors import ConfigError

__all__ = ["OPT"]

_FIELDS = (
    Field("vocab_size", "vocab_size", 50272, size(2**26)),
    Field("hidden_size", "hidden_size", 768, size(2**17)),
    Field("word_size", "word_embed_proj_dim", None, size(2**17), lambda source: source.get("hidden_size", 768)),
    Field("num_layers", "num_hidden_layers", 12, size(2**12)),
    Field("num_heads", "num_attention_heads", 12, size(2**12)),
    Field("intermediate_size", "ffn_dim", 3072, size(2**20)),
    Field("activation", "activation_function", "relu", choice(ACTIVATIONS)),
    Field("max_positions", "max_position_embeddings", 2048, size(2**22)),
    Field("hidden_dropout", "dropout", 0.1, probability()),
    Field("attention_dropout", "attention_dropout", 0.0, probability()),
    Field("initializer_range", "init_std", 0.02, number(0, 100)),
    Field("is_pre_norm", "do_layer_norm_before", True, boolean),
    Field("has_bias", "enable_bias", True, boolean),
    Field("has_norm_weights", "layer_norm_elementwise_affine", True, boolean),
    Field("pad_token_id", "pad_token_id", 1, token_id),
    Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
)

_REQUIRE = (
    Require("layerdrop", (0.0, None), "skipping whole layers in training is not built"),
    SINGLE_LABEL,
)


def _read_final_norm(source: MappingABC[str, Any]) -> dict[str, Any]:
    """Read whether a norm ends the stack: files from before transformers 4.20.1 were trained without it, and say so."""
    removed = source.get("_remove_final_layer_norm", False)
    if not isinstance(removed, bool):
        raise ConfigError(f"_remove_final_layer_norm: expected true or false, found {removed!r:.80}")
    return {"has_final_norm": source.get("do_layer_norm_before", True) and not removed}


def _write_final_norm(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    result["_remove_final_layer_norm"] = values["is_pre_norm"] and not values["has_final_norm"]


def _norm(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """Return the rules of a norm, which may have no parameters."""
    return (
        Rule(f"{ours}.weight", f"{theirs}.weight", is_optional=True),
        Rule(f"{ours}.bias", f"{theirs}.bias", is_optional=True),
    )


_OURS, _THEIRS = "decoder.layers.{layer}", "model.decoder.layers.{layer}"
_MAPS = (
    ("self_attention.sublayer.query", "self_attn.q_proj"),
    ("self_attention.sublayer.key", "self_attn.k_proj"),
    ("self_attention.sublayer.value", "self_attn.v_proj"),
    ("self_attention.sublayer.output", "self_attn.out_proj"),
    ("feed_forward.sublayer.up", "fc1"),
    ("feed_forward.sublayer.down", "fc2"),
)
_RULES = (
    Rule("embeddings.token.weight", "model.decoder.embed_tokens.weight"),
    Rule("embeddings.position.weight", "model.decoder.embed_positions.weight"),
    Rule("embeddings.projection.weight", "model.decoder.project_in.weight", is_optional=True),
    *(rule for ours, theirs in _MAPS for rule in modules(f"{_OURS}.{ours}", f"{_THEIRS}.{theirs}", is_bias_optional=True)),
    *_norm(f"{_OURS}.self_attention.norm", f"{_THEIRS}.self_attn_layer_norm"),
    *_norm(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.final_layer_norm"),
    *_norm("decoder.norm.norm", "model.decoder.final_layer_norm"),
    Rule("decoder.norm.projection.weight", "model.decoder.project_out.weight", is_optional=True),
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_tied = task == "causal_lm" and tied
    heads: dict[Task, tuple[Rule, ...]] = {
        "causal_lm": () if is_tied else (Rule("head.weight", "lm_head.weight"),),
        "classification": (Rule("head.weight", "score.weight"),),
        "question_answering": modules("head.output", "qa_outputs"),
    }
    ignore = [Ignore("lm_head.*", "the head of the language model")] if task != "causal_lm" else []
    ignore += [Ignore("score.*", "the head of a classifier")] if task != "classification" else []
    ignore += [Ignore("qa_outputs.*", "the head of question answering")] if task != "question_answering" else []
    return Mapping(
        _RULES + heads.get(task, ()),
        Prefix("model.", ("decoder",), written=task != "base"),
        ignore=tuple(ignore),
        tied=(Tied("lm_head.weight", "model.decoder.embed_tokens.weight"),) if is_tied else (),
    )


OPT = FamilyConverter(
    model_type="opt",
    table=ConfigTable(_FIELDS, _REQUIRE, (Derived(_read_final_norm, _write_final_norm),)),
    architectures={
        "base": "OPTModel",
        "causal_lm": "OPTForCausalLM",
        "classification": "OPTForSequenceClassification",
        "question_answering": "OPTForQuestionAnswering",
    },
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "word_size"),
        "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "opt"."""
