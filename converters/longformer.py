"""Longformer (Beltagy et al., 2020): Hugging Face's names and fields beside ours. Tables only.

RoBERTa's names and heads; the attention has three maps more, for global tokens.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.bert import ENCODER_REQUIREMENTS, ENCODER_SIZES, encoder_rules
from modelzoo.converters.config_table import ConfigTable, Derived, Field, size, token_id
from modelzoo.converters.family import FamilyConverter
from modelzoo.converters.mapping import Rule, modules
from modelzoo.converters.roberta import ROBERTA, roberta_fields, roberta_mappings
from modelzoo.errors import ConfigError

__all__ = ["LONGFORMER"]

_FIELDS = (
    *(field for field in roberta_fields(30522) if field.ours != "classifier_dropout"),
    Field("sep_token_id", "sep_token_id", 2, token_id),
)


def _read_windows(source: MappingABC[str, Any]) -> dict[str, Any]:
    """Read the windows: one number, or one a layer."""
    stated, layers = source.get("attention_window", 512), source.get("num_hidden_layers", 12)
    each = stated if isinstance(stated, list) else [stated] * layers
    if len(each) != layers:
        raise ConfigError(f"attention_window: expected a number or a list of {layers}, found {stated!r:.80}")
    strange = [width for width in each if size(2**22)(width) or width % 2]
    if strange:
        raise ConfigError(f"attention_window: expected even numbers from 2, found {strange[0]!r:.80}")
    return {"attention_window": each[0] if len(set(each)) == 1 else tuple(each)}


def _write_windows(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    stated = values["attention_window"]
    result["attention_window"] = list(stated) if isinstance(stated, tuple) else stated


_ATTENTION = "encoder.layers.{layer}.self_attention.sublayer"
_THEIRS = "longformer.encoder.layer.{layer}.attention.self"


def _beside_global(rule: Rule) -> Rule:
    """Return BERT's rule with our name of the maps that local tokens use."""
    assert isinstance(rule.ours, str)
    return replace(rule, ours=rule.ours.replace(f"{_ATTENTION}.", f"{_ATTENTION}.local."))


_RULES = (
    *(_beside_global(rule) for rule in encoder_rules("longformer.")),
    *modules(f"{_ATTENTION}.global_query", f"{_THEIRS}.query_global"),
    *modules(f"{_ATTENTION}.global_key", f"{_THEIRS}.key_global"),
    *modules(f"{_ATTENTION}.global_value", f"{_THEIRS}.value_global"),
)

LONGFORMER = FamilyConverter(
    model_type="longformer",
    table=ConfigTable(_FIELDS, ENCODER_REQUIREMENTS, (Derived(_read_windows, _write_windows),)),
    architectures={task: name.replace("Roberta", "Longformer") for task, name in ROBERTA.architectures.items()},
    mappings=roberta_mappings("longformer", _RULES),
    sizes={name.replace(f"{_ATTENTION}.", f"{_ATTENTION}.local."): fields for name, fields in ENCODER_SIZES.items()},
)
"""The converter of model_type "longformer"."""
