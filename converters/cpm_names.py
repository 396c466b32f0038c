"""What the tables of the CPM families share: ModelCenter's names of tensors, and its fields that stand for several of ours."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import Derived, Field, Require, boolean, number, probability, size, token_id
from modelzoo.converters.mapping import Rule, modules
from modelzoo.errors import ConfigError, closest

__all__ = ["ACTIVATION", "REQUIRE", "block_rules", "dropout_fields", "size_fields", "stack_rules"]

_ACTIVATIONS = tuple(f"{gate}{name}" for gate in ("", "gated_") for name in ("gelu", "gelu_new", "relu", "silu"))

_ATTENTION = (("query", "project_q"), ("key", "project_k"), ("value", "project_v"), ("output", "attention_out"))


def _read_activation(source: MappingABC[str, Any]) -> dict[str, Any]:
    stated = source.get("ffn_activate_fn", "gated_gelu")
    if stated not in _ACTIVATIONS:
        near = closest(stated, _ACTIVATIONS) if isinstance(stated, str) else []
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"ffn_activate_fn: expected one of {', '.join(_ACTIVATIONS)}{hint}, found {stated!r:.80}")
    return {"activation": stated.removeprefix("gated_"), "is_gated": stated.startswith("gated_")}


def _write_activation(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    result["ffn_activate_fn"] = ("gated_" if values["is_gated"] else "") + values["activation"]


ACTIVATION = Derived(_read_activation, _write_activation)
"""ModelCenter's `ffn_activate_fn`: an activation, or gated_ and one."""

REQUIRE = (
    Require("post_layer_norm", (False, None), "norms after the sum are not built for ModelCenter's layouts"),
    Require("proj_bias", (False, None), "a head with a bias is not built"),
    Require("cls_head", (None, 0, False), "a classifier in place of the language model's head is not built"),
    Require("int8", (False, None), "quantised weights are not built"),
    Require("mask_modules", (None,), "pruned blocks are not built"),
)
"""What ModelCenter's configs may say that is not built."""


def size_fields(
    *, vocab_size: int, hidden_size: int, num_heads: int, head_size: int, intermediate_size: int, pad_token_id: int
) -> tuple[Field, ...]:
    """Return the fields that ModelCenter's configs of all families have, without the number of layers.

    Args:
        vocab_size: ModelCenter's default, as all others.
        hidden_size: Of `dim_model`.
        num_heads: Of `num_heads`.
        head_size: Of `dim_head`.
        intermediate_size: Of `dim_ff`.
        pad_token_id: Which ModelCenter's tokenizer has and its config does not say.
    """
    return (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "dim_model", hidden_size, size(2**17)),
        Field("num_heads", "num_heads", num_heads, size(2**12)),
        Field("head_size", "dim_head", head_size, size(2**12)),
        Field("intermediate_size", "dim_ff", intermediate_size, size(2**20)),
        Field("norm_eps", "norm_eps", 1e-6, number(0, 1)),
        Field("initializer_range", "att_init_std", 0.02, number(0, 100)),
        Field("length_scale", "length_scale", False, boolean),
        Field("scale_attention", "attn_scale", False, boolean),
        Field("pad_token_id", "pad_token_id", pad_token_id, token_id),
    )


def dropout_fields(*names: str, default: float = 0.0) -> Derived:
    """Return the arguments that the one field `dropout_p` holds together.

    Args:
        *names: Arguments of our config, such as "hidden_dropout".
        default: What an absent field means.
    """

    def read(source: MappingABC[str, Any]) -> dict[str, Any]:
        value = source.get("dropout_p", default)
        expected = None if value is None else probability()(value)
        if expected is not None:
            raise ConfigError(f"dropout_p: expected {expected}, found {value!r:.80}")
        return dict.fromkeys(names, float(value or 0.0))

    def write(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
        found = {name: values[name] for name in names}
        if len(set(found.values())) > 1:
            stated = ", ".join(f"{name}={value}" for name, value in found.items())
            raise ConfigError(f"dropout_p: expected one probability, found {stated}; this family's config has a single field")
        result["dropout_p"] = values[names[0]]

    return Derived(read, write)


def block_rules(ours: str, theirs: str, *, is_gated: bool, has_context: bool = False) -> tuple[Rule, ...]:
    """Return the rules of one block.

    Args:
        ours: Our name of the block, with its placeholder.
        theirs: ModelCenter's.
        is_gated: Whether the feed-forward network is gated.
        has_context: Whether the block also attends to an encoder's output.
    """
    rules: list[Rule] = []
    attentions = {"self_attention": "self_att"} | ({"cross_attention": "cross_att"} if has_context else {})
    for mine, their in attentions.items():
        for name, project in _ATTENTION:
            rules += _optional_bias(f"{ours}.{mine}.sublayer.{name}", f"{theirs}.{their}.self_attention.{project}")
        rules += _optional_bias(f"{ours}.{mine}.norm", f"{theirs}.{their}.layernorm_before_attention")
    inner = (("gate", "w_in.w_0"), ("up", "w_in.w_1")) if is_gated else (("up", "w_in.w"),)
    for name, their in (*inner, ("down", "w_out")):
        rules += _optional_bias(f"{ours}.feed_forward.sublayer.{name}", f"{theirs}.ffn.ffn.{their}")
    rules += _optional_bias(f"{ours}.feed_forward.norm", f"{theirs}.ffn.layernorm_before_ffn")
    return tuple(rules)


def stack_rules(ours: str, theirs: str, *, is_gated: bool, prefix: str = "") -> tuple[Rule, ...]:
    """Return the rules of a stack without a context: its blocks and its last norm.

    Args:
        ours: Our name of the stack.
        theirs: ModelCenter's, without the prefix.
        is_gated: As `block_rules`.
        prefix: What stands before their names.
    """
    blocks = block_rules(f"{ours}.layers.{{layer}}", f"{prefix}{theirs}.layers.{{layer}}", is_gated=is_gated)
    return (*blocks, *_optional_bias(f"{ours}.norm", f"{prefix}{theirs}.output_layernorm"))


def _optional_bias(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return modules(ours, theirs, is_bias_optional=True)
