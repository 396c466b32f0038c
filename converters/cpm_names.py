"""What the tables of the CPM families share: ModelCenter's names of tensors, and its fields that stand for several of ours."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import Derived, probability
from modelzoo.converters.mapping import Rule, modules
from modelzoo.errors import ConfigError

__all__ = ["block_rules", "dropout_fields", "stack_rules"]

_ATTENTION = (("query", "project_q"), ("key", "project_k"), ("value", "project_v"), ("output", "attention_out"))


def dropout_fields(*names: str) -> Derived:
    """Return the arguments that the one field `dropout_p` holds together.

    Args:
        *names: Arguments of our config, such as "hidden_dropout".
    """

    def read(source: MappingABC[str, Any]) -> dict[str, Any]:
        value = source.get("dropout_p", 0.0)
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
