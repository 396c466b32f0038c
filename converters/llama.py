"""LLaMA, Mistral, Qwen2 and Qwen3: Hugging Face's names and fields beside ours. Tables only.

The four share their tensor names; they differ in which of them exist and in a few fields of the config.
"""

from collections.abc import Callable
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
from modelzoo.converters.rope import rope
from modelzoo.errors import ConfigError

__all__ = [
    "FEED_FORWARD",
    "LAYER",
    "LLAMA",
    "MISTRAL",
    "QWEN2",
    "QWEN3",
    "REQUIRE",
    "THEIR_LAYER",
    "llama_family",
    "llama_fields",
    "llama_mapping",
    "optional_size",
    "windows",
]


def llama_fields(
    *,
    vocab_size: int = 32000,
    hidden_size: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    num_key_value_heads: int | None = None,
    head_size: int | None = None,
    intermediate_size: int = 11008,
    max_positions: int = 2048,
    norm_eps: float = 1e-6,
) -> tuple[Field, ...]:
    """Return the fields that all relatives have, by their defaults in transformers 5.24."""

    def heads(source: MappingABC[str, Any]) -> Any:
        return source.get("num_attention_heads", num_heads)

    def size_of_a_head(source: MappingABC[str, Any]) -> Any:
        return source.get("hidden_size", hidden_size) // heads(source)

    return (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "hidden_size", hidden_size, size(2**17)),
        Field("num_layers", "num_hidden_layers", num_layers, size(2**12)),
        Field("num_heads", "num_attention_heads", num_heads, size(2**12)),
        Field("num_key_value_heads", "num_key_value_heads", num_key_value_heads, size(2**12), heads),
        Field("head_size", "head_dim", head_size, size(2**12), size_of_a_head),
        Field("intermediate_size", "intermediate_size", intermediate_size, size(2**20)),
        Field("activation", "hidden_act", "silu", choice(ACTIVATIONS)),
        Field("attention_dropout", "attention_dropout", 0.0, probability()),
        Field("max_positions", "max_position_embeddings", max_positions, size(2**26)),
        Field("norm_eps", "rms_norm_eps", norm_eps, number(0, 1)),
        Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
        Field("pad_token_id", "pad_token_id", None, token_id),
    )


_UNTIED = Field("tie_word_embeddings", "tie_word_embeddings", False, boolean)
_BIASES = (
    Field("attention_bias", "attention_bias", False, boolean),
    Field("output_bias", "attention_bias", False, boolean),
)
REQUIRE = (
    Require("pretraining_tp", (1, None), "the slicing of pretraining is not built"),
    SINGLE_LABEL,
)


def windows(is_windowed: Callable[[int, int], bool], *, num_layers: int = 32) -> Derived:
    """Return the arguments `window` and `window_layers` of Qwen's configs.

    Args:
        is_windowed: Whether a layer has a window, from its number and `max_window_layers`, where the config does not list them.
        num_layers: What an absent `num_hidden_layers` means.
    """
    return Derived(lambda source: _read_windows(source, is_windowed, num_layers), _write_windows)


def _read_windows(source: MappingABC[str, Any], is_windowed: Callable[[int, int], bool], num_layers: int) -> dict[str, Any]:
    checks = {"sliding_window": _optional_count, "use_sliding_window": _optional_boolean, "max_window_layers": _optional_count}
    problems = {name: check(source.get(name)) for name, check in checks.items()}
    for name in (name for name, problem in problems.items() if problem):
        raise ConfigError(f"{name}: expected {problems[name]}, found {source[name]!r:.80}")
    kinds, window = source.get("layer_types"), source.get("sliding_window", 4096)
    layers = source.get("num_hidden_layers", num_layers)
    has_window = bool(source.get("use_sliding_window", False)) and window is not None
    if kinds is None:
        stated = source.get("max_window_layers")
        first = 28 if stated is None else stated
        chosen = {layer for layer in range(layers) if has_window and is_windowed(layer, first)}
        kinds = ["sliding_attention" if layer in chosen else "full_attention" for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"layer_types: expected a list of {layers} kinds, found {kinds!r:.80}")
    strange = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if strange:
        raise ConfigError(f"layer_types: expected sliding_attention or full_attention, found {strange[0]!r:.80}")
    listed = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if not listed:
        return {"window": None, "window_layers": None}
    if not has_window or window < 1:
        raise ConfigError(f"sliding_window: expected a number from 1, with use_sliding_window true, found {window!r:.80}")
    return {"window": window, "window_layers": listed}


def _write_windows(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    window, chosen = values["window"], values["window_layers"]
    layers = range(values["num_layers"])
    windowed = set() if window is None else set(layers if chosen is None else chosen)
    result["use_sliding_window"] = bool(windowed)
    result["sliding_window"] = window
    result["layer_types"] = ["sliding_attention" if layer in windowed else "full_attention" for layer in layers]


def _optional_boolean(value: object) -> str | None:
    return None if value is None else boolean(value)


def _optional_count(value: object) -> str | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if value is None or is_count else "a whole number from 0 or null"


def optional_size(value: object) -> str | None:
    """Check for a whole number from 1, or null."""
    return None if value is None or size(2**26)(value) is None else "a whole number from 1 or null"


LAYER, THEIR_LAYER = "decoder.layers.{layer}", "model.layers.{layer}"
_RULES = (
    Rule("embeddings.token.weight", "model.embed_tokens.weight"),
    *modules(f"{LAYER}.self_attention.sublayer.query", f"{THEIR_LAYER}.self_attn.q_proj", is_bias_optional=True),
    *modules(f"{LAYER}.self_attention.sublayer.key", f"{THEIR_LAYER}.self_attn.k_proj", is_bias_optional=True),
    *modules(f"{LAYER}.self_attention.sublayer.value", f"{THEIR_LAYER}.self_attn.v_proj", is_bias_optional=True),
    *modules(f"{LAYER}.self_attention.sublayer.output", f"{THEIR_LAYER}.self_attn.o_proj", is_bias_optional=True),
    Rule(f"{LAYER}.self_attention.sublayer.query_norm.weight", f"{THEIR_LAYER}.self_attn.q_norm.weight", is_optional=True),
    Rule(f"{LAYER}.self_attention.sublayer.key_norm.weight", f"{THEIR_LAYER}.self_attn.k_norm.weight", is_optional=True),
    Rule(f"{LAYER}.self_attention.norm.weight", f"{THEIR_LAYER}.input_layernorm.weight"),
    Rule(f"{LAYER}.feed_forward.norm.weight", f"{THEIR_LAYER}.post_attention_layernorm.weight"),
    Rule("decoder.norm.weight", "model.norm.weight"),
)
FEED_FORWARD = (
    *modules(f"{LAYER}.feed_forward.sublayer.gate", f"{THEIR_LAYER}.mlp.gate_proj", is_bias_optional=True),
    *modules(f"{LAYER}.feed_forward.sublayer.up", f"{THEIR_LAYER}.mlp.up_proj", is_bias_optional=True),
    *modules(f"{LAYER}.feed_forward.sublayer.down", f"{THEIR_LAYER}.mlp.down_proj", is_bias_optional=True),
)
_FREQUENCIES = Ignore(f"{THEIR_LAYER}.self_attn.rotary_emb.inv_freq", "rotary frequencies, a constant buffer of old transformers")


def llama_mapping(
    task: Task, tied: bool, feed_forward: tuple[Rule, ...] = FEED_FORWARD, *, answers_under: str = "transformer."
) -> Mapping:
    """Return the table of tensor names for a task.

    Args:
        task: What the model is for.
        tied: Whether the language model's head is the token embedding.
        feed_forward: The rules of the feed-forward networks.
        answers_under: The prefix of the backbone in files for question answering; "" for that of all others.
    """
    is_tied = task == "causal_lm" and tied
    heads: dict[Task, tuple[Rule, ...]] = {
        "causal_lm": () if is_tied else (Rule("head.weight", "lm_head.weight"),),
        "classification": (Rule("head.weight", "score.weight"),),
        "token_classification": modules("head.output", "score"),
        "question_answering": modules("head.output", "qa_outputs"),
    }
    ignore = [_FREQUENCIES]
    ignore += [Ignore("lm_head.*", "the head of the language model")] if task != "causal_lm" else []
    ignore += [Ignore("score.*", "the head of a classifier")] if "classification" not in task else []
    ignore += [Ignore("qa_outputs.*", "the head of question answering")] if task != "question_answering" else []
    roots, is_answering = ("embed_tokens", "layers", "norm"), bool(answers_under) and task == "question_answering"
    return Mapping(
        _RULES + feed_forward + heads.get(task, ()),
        Prefix("model.", roots, written=task != "base", other=answers_under, writes_other=is_answering),
        ignore=tuple(ignore),
        tied=(Tied("lm_head.weight", "model.embed_tokens.weight"),) if is_tied else (),
    )


def llama_family(
    model_type: str,
    name: str,
    table: ConfigTable,
    mappings: Callable[[Task, bool, MappingABC[str, Any]], Mapping] = lambda task, tied, values: llama_mapping(task, tied),
    sizes: MappingABC[str, tuple[str, ...]] | None = None,
) -> FamilyConverter:
    """Return the converter of a relative of LLaMA.

    Args:
        model_type: Hugging Face's name of the family.
        name: What its classes' names begin with.
        table: Its config.
        mappings: Its tensor names.
        sizes: Shapes of the feed-forward networks; None for those of a plain one.
    """
    plain = {f"{LAYER}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size")}
    return FamilyConverter(
        model_type=model_type,
        table=table,
        architectures={
            "base": f"{name}Model",
            "causal_lm": f"{name}ForCausalLM",
            "classification": f"{name}ForSequenceClassification",
            "token_classification": f"{name}ForTokenClassification",
            "question_answering": f"{name}ForQuestionAnswering",
        },
        mappings=mappings,
        sizes={
            "embeddings.token.weight": ("vocab_size", "hidden_size"),
            "head.output.weight": ("num_labels", "hidden_size"),
            **(plain if sizes is None else sizes),
        },
    )


LLAMA = llama_family(
    "llama",
    "Llama",
    ConfigTable((*llama_fields(), _UNTIED, *_BIASES, Field("feed_forward_bias", "mlp_bias", False, boolean)), REQUIRE, (rope(),)),
)
"""The converter of model_type "llama"."""

MISTRAL = llama_family(
    "mistral",
    "Mistral",
    ConfigTable(
        (
            *llama_fields(intermediate_size=14336, max_positions=131072, num_key_value_heads=8),
            _UNTIED,
            Field("window", "sliding_window", 4096, optional_size),
        ),
        (*REQUIRE, Require("layer_types", (None,), "layers of different kinds are not built for Mistral")),
        (rope(),),
    ),
    lambda task, tied, values: llama_mapping(task, tied, answers_under=""),
)
"""The converter of model_type "mistral"."""

_QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "max_positions": 32768, "num_key_value_heads": 32}
_WINDOWS = windows(lambda layer, first: layer >= first)

QWEN2 = llama_family("qwen2", "Qwen2", ConfigTable((*llama_fields(**_QWEN), _UNTIED), REQUIRE, (rope(), _WINDOWS)))
"""The converter of model_type "qwen2"."""

QWEN3 = llama_family(
    "qwen3",
    "Qwen3",
    ConfigTable((*llama_fields(**_QWEN, head_size=128), _UNTIED, *_BIASES), REQUIRE, (rope(), _WINDOWS)),
)
"""The converter of model_type "qwen3"."""
