"""LLaMA, Mistral, Qwen2 and Qwen3: Hugging Face's names and fields beside ours. Tables only.

The four share their tensor names; they differ in which of them exist and in a few fields of the config.
"""

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
from modelzoo.converters.names import ACTIVATIONS
from modelzoo.converters.rope import rope
from modelzoo.errors import ConfigError

__all__ = ["LLAMA", "MISTRAL", "QWEN2", "QWEN3"]


def _heads(source: MappingABC[str, Any]) -> Any:
    return source.get("num_attention_heads", 32)


def _head_size(source: MappingABC[str, Any]) -> Any:
    return source.get("hidden_size", 4096) // _heads(source)


def _fields(
    *, vocab_size: int, intermediate_size: int, max_positions: int, num_key_value_heads: int | None, head_size: int | None
) -> tuple[Field, ...]:
    """Return the fields that all four have; the defaults are those of transformers 5.24."""
    return (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "hidden_size", 4096, size(2**17)),
        Field("num_layers", "num_hidden_layers", 32, size(2**12)),
        Field("num_heads", "num_attention_heads", 32, size(2**12)),
        Field("num_key_value_heads", "num_key_value_heads", num_key_value_heads, size(2**12), _heads),
        Field("head_size", "head_dim", head_size, size(2**12), _head_size),
        Field("intermediate_size", "intermediate_size", intermediate_size, size(2**20)),
        Field("activation", "hidden_act", "silu", choice(ACTIVATIONS)),
        Field("attention_dropout", "attention_dropout", 0.0, probability()),
        Field("max_positions", "max_position_embeddings", max_positions, size(2**26)),
        Field("norm_eps", "rms_norm_eps", 1e-6, number(0, 1)),
        Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
        Field("pad_token_id", "pad_token_id", None, token_id),
        Field("tie_word_embeddings", "tie_word_embeddings", False, boolean),
    )


_BIASES = (
    Field("attention_bias", "attention_bias", False, boolean),
    Field("output_bias", "attention_bias", False, boolean),
)
_REQUIRE = (
    Require("pretraining_tp", (1, None), "the slicing of pretraining is not built"),
    Require(
        "problem_type",
        (None, "single_label_classification"),
        "only one label of several is built, not regression and not several labels at once",
        tasks=("classification",),
    ),
)


def _read_windows(source: MappingABC[str, Any]) -> dict[str, Any]:
    """Read Qwen's windows: which layers have one is a list of kinds, or all from a first layer on."""
    kinds, window = source.get("layer_types"), source.get("sliding_window", 4096)
    layers = source.get("num_hidden_layers", 32)
    has_window = bool(source.get("use_sliding_window", False)) and window is not None
    if kinds is None:
        first = source.get("max_window_layers", 28)
        kinds = ["sliding_attention" if has_window and layer >= first else "full_attention" for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"layer_types: expected a list of {layers} kinds, found {kinds!r:.80}")
    strange = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if strange:
        raise ConfigError(f"layer_types: expected sliding_attention or full_attention, found {strange[0]!r:.80}")
    chosen = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if not chosen:
        return {"window": None, "window_layers": None}
    problem = None if window is None else size(2**26)(window)
    if problem or not has_window:
        raise ConfigError(f"sliding_window: expected {problem or 'a number, with use_sliding_window true'}, found {window!r:.80}")
    return {"window": window, "window_layers": chosen}


def _write_windows(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    window, chosen = values["window"], values["window_layers"]
    layers = range(values["num_layers"])
    windowed = set() if window is None else set(layers if chosen is None else chosen)
    result["use_sliding_window"] = bool(windowed)
    result["sliding_window"] = window
    result["layer_types"] = ["sliding_attention" if layer in windowed else "full_attention" for layer in layers]


def _optional_size(value: object) -> str | None:
    return None if value is None or size(2**26)(value) is None else "a whole number from 1 or null"


_OURS, _THEIRS = "decoder.layers.{layer}", "model.layers.{layer}"
_RULES = (
    Rule("embeddings.token.weight", "model.embed_tokens.weight"),
    *modules(f"{_OURS}.self_attention.sublayer.query", f"{_THEIRS}.self_attn.q_proj", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.key", f"{_THEIRS}.self_attn.k_proj", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.value", f"{_THEIRS}.self_attn.v_proj", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.output", f"{_THEIRS}.self_attn.o_proj", is_bias_optional=True),
    Rule(f"{_OURS}.self_attention.sublayer.query_norm.weight", f"{_THEIRS}.self_attn.q_norm.weight", is_optional=True),
    Rule(f"{_OURS}.self_attention.sublayer.key_norm.weight", f"{_THEIRS}.self_attn.k_norm.weight", is_optional=True),
    Rule(f"{_OURS}.self_attention.norm.weight", f"{_THEIRS}.input_layernorm.weight"),
    *modules(f"{_OURS}.feed_forward.sublayer.gate", f"{_THEIRS}.mlp.gate_proj", is_bias_optional=True),
    *modules(f"{_OURS}.feed_forward.sublayer.up", f"{_THEIRS}.mlp.up_proj", is_bias_optional=True),
    *modules(f"{_OURS}.feed_forward.sublayer.down", f"{_THEIRS}.mlp.down_proj", is_bias_optional=True),
    Rule(f"{_OURS}.feed_forward.norm.weight", f"{_THEIRS}.post_attention_layernorm.weight"),
    Rule("decoder.norm.weight", "model.norm.weight"),
)
_FREQUENCIES = Ignore(f"{_THEIRS}.self_attn.rotary_emb.inv_freq", "rotary frequencies, a constant buffer of old transformers")


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_tied = task == "causal_lm" and tied
    heads: dict[Task, tuple[Rule, ...]] = {
        "causal_lm": () if is_tied else (Rule("head.weight", "lm_head.weight"),),
        "classification": (Rule("head.weight", "score.weight"),),
        "token_classification": modules("head.output", "score"),
    }
    ignore = [_FREQUENCIES]
    ignore += [Ignore("lm_head.*", "the head of the language model")] if task != "causal_lm" else []
    ignore += [Ignore("score.*", "the head of a classifier")] if task in ("base", "causal_lm") else []
    return Mapping(
        _RULES + heads.get(task, ()),
        Prefix("model.", ("embed_tokens", "layers", "norm"), written=task != "base"),
        ignore=tuple(ignore),
        tied=(Tied("lm_head.weight", "model.embed_tokens.weight"),) if is_tied else (),
    )


def _family(model_type: str, name: str, table: ConfigTable) -> FamilyConverter:
    return FamilyConverter(
        model_type=model_type,
        table=table,
        architectures={
            "base": f"{name}Model",
            "causal_lm": f"{name}ForCausalLM",
            "classification": f"{name}ForSequenceClassification",
            "token_classification": f"{name}ForTokenClassification",
        },
        mappings=_mapping,
        sizes={
            "embeddings.token.weight": ("vocab_size", "hidden_size"),
            "decoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
            "head.output.weight": ("num_labels", "hidden_size"),
        },
    )


LLAMA = _family(
    "llama",
    "Llama",
    ConfigTable(
        (
            *_fields(vocab_size=32000, intermediate_size=11008, max_positions=2048, num_key_value_heads=None, head_size=None),
            *_BIASES,
            Field("feed_forward_bias", "mlp_bias", False, boolean),
        ),
        _REQUIRE,
        (rope(),),
    ),
)
"""The converter of model_type "llama"."""

MISTRAL = _family(
    "mistral",
    "Mistral",
    ConfigTable(
        (
            *_fields(vocab_size=32000, intermediate_size=14336, max_positions=131072, num_key_value_heads=8, head_size=None),
            Field("window", "sliding_window", 4096, _optional_size),
        ),
        (*_REQUIRE, Require("layer_types", (None,), "layers of different kinds are not built for Mistral")),
        (rope(),),
    ),
)
"""The converter of model_type "mistral"."""

_QWEN_FIELDS = {"vocab_size": 151936, "intermediate_size": 22016, "max_positions": 32768, "num_key_value_heads": 32}
_WINDOWS = Derived(_read_windows, _write_windows)

QWEN2 = _family("qwen2", "Qwen2", ConfigTable(_fields(**_QWEN_FIELDS, head_size=None), _REQUIRE, (rope(), _WINDOWS)))
"""The converter of model_type "qwen2"."""

QWEN3 = _family("qwen3", "Qwen3", ConfigTable((*_fields(**_QWEN_FIELDS, head_size=128), *_BIASES), _REQUIRE, (rope(), _WINDOWS)))
"""The converter of model_type "qwen3"."""
