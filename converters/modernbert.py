"""ModernBERT (Warner et al., 2024): Hugging Face's names and fields beside ours. Tables only."""

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
from modelzoo.converters.ops import Split
from modelzoo.errors import ConfigError

__all__ = ["MODERNBERT"]

_FIELDS = (
    Field("vocab_size", "vocab_size", 50368, size(2**26)),
    Field("hidden_size", "hidden_size", 768, size(2**17)),
    Field("num_layers", "num_hidden_layers", 22, size(2**12)),
    Field("num_heads", "num_attention_heads", 12, size(2**12)),
    Field("intermediate_size", "intermediate_size", 1152, size(2**20)),
    Field("activation", "hidden_activation", "gelu", choice(ACTIVATIONS)),
    Field("max_positions", "max_position_embeddings", 8192, size(2**26)),
    Field("norm_eps", "norm_eps", 1e-5, number(0, 1)),
    Field("norm_bias", "norm_bias", False, boolean),
    Field("attention_bias", "attention_bias", False, boolean),
    Field("feed_forward_bias", "mlp_bias", False, boolean),
    Field("classifier_bias", "classifier_bias", False, boolean),
    Field("decoder_bias", "decoder_bias", True, boolean),
    Field("hidden_dropout", "embedding_dropout", 0.0, probability()),
    Field("attention_dropout", "attention_dropout", 0.0, probability()),
    Field("feed_forward_dropout", "mlp_dropout", 0.0, probability()),
    Field("classifier_dropout", "classifier_dropout", 0.0, probability()),
    Field("local_attention", "local_attention", 128, size(2**26)),
    Field("classifier_activation", "classifier_activation", "gelu", choice(ACTIVATIONS)),
    Field("classifier_pooling", "classifier_pooling", "cls", choice(("cls", "mean"))),
    Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
    Field("pad_token_id", "pad_token_id", 50283, token_id),
    Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
)
_REQUIRE = (
    SINGLE_LABEL,
    Require("sparse_pred_ignore_index", (-100,), "the one label that means no target is -100", tasks=("masked_lm",)),
)

_FULL, _SLIDING = "full_attention", "sliding_attention"
_EVERY = 3


def _read_layers(source: MappingABC[str, Any]) -> dict[str, Any]:
    """Read which layers see the whole text: a list of kinds, or every n-th in files from before version 5."""
    layers, kinds = source.get("num_hidden_layers", 22), source.get("layer_types")
    if kinds is None:
        every = source.get("global_attn_every_n_layers", _EVERY)
        problem = size(2**12)(every)
        if problem:
            raise ConfigError(f"global_attn_every_n_layers: expected {problem}, found {every!r:.80}")
        kinds = [_SLIDING if layer % every else _FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"layer_types: expected a list of {layers} kinds, found {kinds!r:.80}")
    strange = [kind for kind in kinds if kind not in (_FULL, _SLIDING)]
    if strange:
        raise ConfigError(f"layer_types: expected {_FULL} or {_SLIDING}, found {strange[0]!r:.80}")
    chosen = tuple(layer for layer, kind in enumerate(kinds) if kind == _FULL)
    return {"global_layers": None if chosen == tuple(range(0, layers, _EVERY)) else chosen}


def _write_layers(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    layers, chosen = range(values["num_layers"]), values["global_layers"]
    whole = set(layers[::_EVERY] if chosen is None else chosen)
    result.pop("global_attn_every_n_layers", None)
    result["layer_types"] = [_FULL if layer in whole else _SLIDING for layer in layers]


_THETAS = {
    "global_rope_theta": (_FULL, "global_rope_theta", 160000.0),
    "local_rope_theta": (_SLIDING, "local_rope_theta", 10000.0),
}


def _read_thetas(source: MappingABC[str, Any]) -> dict[str, Any]:
    """Read the two bases of wavelengths: an object a kind of layer, or two numbers in files from before version 5."""
    stated = source.get("rope_parameters") or {}
    if not isinstance(stated, dict) or not all(isinstance(part, dict | None) for part in stated.values()):
        raise ConfigError(f"rope_parameters: expected an object a kind of layer, found {stated!r:.80}")
    if source.get("rope_scaling") is not None:
        raise ConfigError(f"rope_scaling: expected null, found {source['rope_scaling']!r:.80}; stretched positions are not built")
    found = {}
    for name, (kind, old, default) in _THETAS.items():
        part = stated.get(kind) or {}
        if part.get("rope_type", "default") != "default":
            raise ConfigError(f"rope_parameters: {kind}: rope_type: expected 'default', found {part['rope_type']!r:.80}")
        theta = part.get("rope_theta", source.get(old, default))
        problem = number(1, 1e12)(theta)
        if problem:
            raise ConfigError(f"rope_parameters: {kind}: rope_theta: expected {problem}, found {theta!r:.80}")
        found[name] = theta
    return found


def _write_thetas(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    for _, old, _ in _THETAS.values():
        result.pop(old, None)
    result["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": values[name]} for name, (kind, _, _) in _THETAS.items()
    }


_OURS, _THEIRS = "encoder.layers.{layer}", "model.layers.{layer}"


def _both(ours: tuple[str, ...], theirs: str) -> tuple[Rule, ...]:
    """Return the rules of weights and biases that are one tensor in the file."""
    return tuple(
        Rule(tuple(f"{name}.{end}" for name in ours), f"{theirs}.{end}", Split(len(ours)), is_optional=end == "bias")
        for end in ("weight", "bias")
    )


def _norm(ours: str, theirs: str, *, is_optional: bool = False) -> tuple[Rule, ...]:
    return (
        Rule(f"{ours}.weight", f"{theirs}.weight", is_optional=is_optional),
        Rule(f"{ours}.bias", f"{theirs}.bias", is_optional=True),
    )


_ATTENTION = tuple(f"{_OURS}.self_attention.sublayer.{name}" for name in ("query", "key", "value"))
_GATED = tuple(f"{_OURS}.feed_forward.sublayer.{name}" for name in ("gate", "up"))
_RULES = (
    Rule("embeddings.token.weight", "model.embeddings.tok_embeddings.weight"),
    *_norm("embeddings.norm", "model.embeddings.norm"),
    *_both(_ATTENTION, f"{_THEIRS}.attn.Wqkv"),
    *modules(f"{_OURS}.self_attention.sublayer.output", f"{_THEIRS}.attn.Wo", is_bias_optional=True),
    *_norm(f"{_OURS}.self_attention.norm", f"{_THEIRS}.attn_norm", is_optional=True),  # the first layer has none
    *_both(_GATED, f"{_THEIRS}.mlp.Wi"),
    *modules(f"{_OURS}.feed_forward.sublayer.down", f"{_THEIRS}.mlp.Wo", is_bias_optional=True),
    *_norm(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.mlp_norm"),
    *_norm("encoder.norm", "model.final_norm"),
)
_HEAD = (*modules("head.dense", "head.dense", is_bias_optional=True), *_norm("head.norm", "head.norm"))
_BIAS = Rule("head.bias", "decoder.bias", is_optional=True)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    rules, ignore = _RULES, []
    ties: tuple[Tied, ...] = ()
    if task == "masked_lm":
        rules += (*_HEAD, _BIAS) if tied else (*_HEAD, _BIAS, Rule("head.decoder.weight", "decoder.weight"))
        ties = (Tied("decoder.weight", "model.embeddings.tok_embeddings.weight"),) if tied else ()
    elif task != "base":
        rules += (*_HEAD, *modules("head.output", "classifier"))
    if task != "masked_lm":
        ignore.append(Ignore("decoder.*", "the head of masked language modelling"))
    if task in ("base", "masked_lm"):
        ignore.append(Ignore("classifier.*", "the head of a classifier"))
    if task == "base":
        ignore.append(Ignore("head.*", "the map before a head's scores"))
    prefix = Prefix("model.", ("embeddings", "layers", "final_norm"), written=task != "base")
    return Mapping(rules, prefix, ignore=tuple(ignore), tied=ties)


MODERNBERT = FamilyConverter(
    model_type="modernbert",
    table=ConfigTable(_FIELDS, _REQUIRE, (Derived(_read_layers, _write_layers), Derived(_read_thetas, _write_thetas))),
    architectures={
        "base": "ModernBertModel",
        "masked_lm": "ModernBertForMaskedLM",
        "classification": "ModernBertForSequenceClassification",
        "token_classification": "ModernBertForTokenClassification",
        "question_answering": "ModernBertForQuestionAnswering",
        "multiple_choice": "ModernBertForMultipleChoice",
    },
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "encoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
        "head.bias": ("vocab_size",),
        "head.output.weight": ("num_labels", "hidden_size"),
    },
)
"""The converter of model_type "modernbert"."""
