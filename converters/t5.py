"""T5 and mT5 (Raffel et al., 2020; Xue et al., 2021): Hugging Face's names and fields beside ours. Tables only.

Whether the head is the token table is what the tensors say. `tie_word_embeddings` says something else in this family: whether the
head reads the decoder's output divided by sqrt(D); version 5 writes that as `scale_decoder_outputs`. mT5 never divides.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, Require, number, probability, size, token_id
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL
from modelzoo.errors import ConfigError, closest

__all__ = ["MT5", "T5"]


def _read_feed_forward(source: MappingABC[str, Any], default: str) -> dict[str, Any]:
    stated = source.get("feed_forward_proj", default)
    kind = stated if isinstance(stated, str) else ""
    name = kind.removeprefix("gated-")
    if name not in ACTIVATIONS:
        near = closest(name, ACTIVATIONS)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"feed_forward_proj: expected an activation, or gated- and one, found {stated!r:.80}{hint}")
    # "gated-gelu" has always meant the tanh form.
    return {"is_gated": kind.startswith("gated-"), "activation": "gelu_new" if kind == "gated-gelu" else name}


def _write_feed_forward(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    name = values["activation"]
    result["feed_forward_proj"] = ("gated-gelu" if name == "gelu_new" else f"gated-{name}") if values["is_gated"] else name


def _read_scale(source: MappingABC[str, Any]) -> dict[str, Any]:
    for name in ("scale_decoder_outputs", "tie_word_embeddings"):
        if not isinstance(source.get(name), bool | None):
            raise ConfigError(f"{name}: expected true, false or null, found {source[name]!r:.80}")
    stated = source.get("scale_decoder_outputs")
    return {"scale_decoder_outputs": source.get("tie_word_embeddings") is not False if stated is None else stated}


def _write_scale(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    result.pop("scale_decoder_outputs", None)
    result["tie_word_embeddings"] = values["scale_decoder_outputs"]


def _table(
    *,
    vocab_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    feed_forward: str,
    derived: tuple[Derived, ...] = (),
) -> ConfigTable:
    def layers(source: MappingABC[str, Any]) -> Any:
        return source.get("num_layers", num_layers)

    fields = (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "d_model", 512, size(2**17)),
        Field("head_size", "d_kv", 64, size(2**12)),
        Field("intermediate_size", "d_ff", intermediate_size, size(2**20)),
        Field("num_layers", "num_layers", num_layers, size(2**12)),
        Field("num_decoder_layers", "num_decoder_layers", None, size(2**12), layers),
        Field("num_heads", "num_heads", num_heads, size(2**12)),
        Field("num_buckets", "relative_attention_num_buckets", 32, size(2**16)),
        Field("max_distance", "relative_attention_max_distance", 128, size(2**24)),
        Field("dropout", "dropout_rate", 0.1, probability()),
        Field("classifier_dropout", "classifier_dropout", 0.0, probability()),
        Field("norm_eps", "layer_norm_epsilon", 1e-6, number(0, 1)),
        Field("initializer_range", "initializer_factor", 1.0, number(0, 1e6)),
        Field("pad_token_id", "pad_token_id", 0, token_id),
        Field("eos_token_id", "eos_token_id", 1, token_id),
        Field("decoder_start_token_id", "decoder_start_token_id", None, token_id, lambda source: source.get("pad_token_id", 0)),
    )
    require = (
        Require("is_decoder", (False, None), "a decoder alone is not built"),
        SINGLE_LABEL,
    )
    return ConfigTable(
        fields,
        require,
        (Derived(lambda source: _read_feed_forward(source, feed_forward), _write_feed_forward), *derived),
    )


def _stack_rules(side: str, *, is_gated: bool) -> tuple[Rule, ...]:
    """Return the rules of the encoder or the decoder."""
    number = "{layer}" if side == "encoder" else "{decoder_layer}"
    ours, theirs = f"{side}.layers.{number}", f"{side}.block.{number}.layer"
    attentions = {"self_attention": "0.SelfAttention"} | ({"cross_attention": "1.EncDecAttention"} if side == "decoder" else {})
    rules = []
    for mine, their in attentions.items():
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            rules.append(Rule(f"{ours}.{mine}.sublayer.{name}.weight", f"{theirs}.{their}.{letter}.weight"))
        rules.append(Rule(f"{ours}.{mine}.norm.weight", f"{theirs}.{their[0]}.layer_norm.weight"))
    last = f"{theirs}.{len(attentions)}"
    inner = (("gate", "wi_0"), ("up", "wi_1")) if is_gated else (("up", "wi"),)
    for name, their in (*inner, ("down", "wo")):
        rules.append(Rule(f"{ours}.feed_forward.sublayer.{name}.weight", f"{last}.DenseReluDense.{their}.weight"))
    rules.append(Rule(f"{ours}.feed_forward.norm.weight", f"{last}.layer_norm.weight"))
    rules.append(Rule(f"{side}.norm.weight", f"{side}.final_layer_norm.weight"))
    rules.append(Rule(f"{side}.position.weight", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"))
    return tuple(rules)


_HEADS: dict[Task, tuple[Rule, ...]] = {
    "seq2seq_lm": (Rule("head.weight", "lm_head.weight"),),
    "classification": (
        *modules("head.dense", "classification_head.dense"),
        *modules("head.output", "classification_head.out_proj"),
    ),
    "token_classification": modules("head.output", "classifier"),
    "question_answering": modules("head.output", "qa_outputs"),
}
# transformers puts the encoder and the decoder of a classifier under one more name.
_INNER = {"classification": "transformer.", "token_classification": "transformer."}
_UNUSED = Ignore(
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", "cross attention has no positions; of old T5 files"
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    is_gated = bool(values.get("is_gated", False))
    has_decoder = task not in ("encoder", "token_classification")
    rules = (Rule("token.weight", "shared.weight"), *_stack_rules("encoder", is_gated=is_gated))
    tables = ["encoder.embed_tokens.weight"]
    if has_decoder:
        rules += _stack_rules("decoder", is_gated=is_gated)
        tables.append("decoder.embed_tokens.weight")
    is_tied = task == "seq2seq_lm" and tied
    ties = [Tied(name, "shared.weight") for name in tables] + ([Tied("lm_head.weight", "shared.weight")] if is_tied else [])
    ignore = [_UNUSED]
    ignore += [] if has_decoder else [Ignore("decoder.*", "this task has no decoder")]
    ignore += [] if task == "seq2seq_lm" else [Ignore("lm_head.*", "the head of the language model")]
    ignore += [] if task == "question_answering" else [Ignore("qa_outputs.*", "the head of question answering")]
    prefix = Prefix(_INNER[task], ("shared", "encoder", "decoder"), written=True) if task in _INNER else None
    if prefix is not None:
        rules = tuple(Rule(rule.ours, f"{prefix.name}{rule.theirs}") for rule in rules)
        ties = [Tied(f"{prefix.name}{tie.alias}", f"{prefix.name}{tie.target}") for tie in ties]
        ignore = [
            Ignore(
                f"{prefix.name}{entry.pattern}" if entry.pattern not in ("lm_head.*", "qa_outputs.*") else entry.pattern,
                entry.reason,
            )
            for entry in ignore
        ]
    return Mapping(rules + (() if is_tied else _HEADS.get(task, ())), prefix, ignore=tuple(ignore), tied=tuple(ties))


def _family(model_type: str, name: str, table: ConfigTable) -> FamilyConverter:
    return FamilyConverter(
        model_type=model_type,
        table=table,
        architectures={
            "base": f"{name}Model",
            "encoder": f"{name}EncoderModel",
            "seq2seq_lm": f"{name}ForConditionalGeneration",
            "classification": f"{name}ForSequenceClassification",
            "token_classification": f"{name}ForTokenClassification",
            "question_answering": f"{name}ForQuestionAnswering",
        },
        also={f"{name}WithLMHeadModel": "seq2seq_lm"},
        mappings=_mapping,
        sizes={"token.weight": ("vocab_size", "hidden_size"), "head.output.weight": ("num_labels", "hidden_size")},
        counts={"layer": "num_layers", "decoder_layer": "num_decoder_layers"},
        is_tied_by_tensors=True,
    )


T5 = _family(
    "t5",
    "T5",
    _table(
        vocab_size=32128,
        intermediate_size=2048,
        num_layers=6,
        num_heads=8,
        feed_forward="relu",
        derived=(Derived(_read_scale, _write_scale),),
    ),
)
"""The converter of model_type "t5"."""

MT5 = _family(
    "mt5",
    "MT5",
    _table(vocab_size=250112, intermediate_size=1024, num_layers=8, num_heads=6, feed_forward="gated-gelu"),
)
"""The converter of model_type "mt5"."""
