"""DINOv2 (Oquab et al., 2023): Hugging Face's names and fields beside ours. Tables only.

The names are those of files; transformers has had other names in memory since version 5.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, choice, number, probability, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL
from modelzoo.converters.ops import Split
from modelzoo.converters.vit import image_sizes

__all__ = ["DINOV2"]

_FIELDS = (
    Field("hidden_size", "hidden_size", 768, size(2**17)),
    Field("num_layers", "num_hidden_layers", 12, size(2**12)),
    Field("num_heads", "num_attention_heads", 12, size(2**12)),
    Field("width_ratio", "mlp_ratio", 4, size(2**10)),
    Field("is_gated", "use_swiglu_ffn", False, boolean),
    Field("activation", "hidden_act", "gelu", choice(ACTIVATIONS)),
    Field("hidden_dropout", "hidden_dropout_prob", 0.0, probability()),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0, probability()),
    Field("norm_eps", "layer_norm_eps", 1e-6, number(0, 1)),
    Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
    Field("num_channels", "num_channels", 3, size(2**10)),
    Field("attention_bias", "qkv_bias", True, boolean),
    Field("layer_scale", "layerscale_value", 1.0, number(0, 100)),
    Field("has_mask_token", "use_mask_token", True, boolean),
)
_REQUIRE = (SINGLE_LABEL, Require("drop_path_rate", (0, None), "stochastic depth is not built"))

_OURS, _THEIRS = "encoder.layers.{layer}", "dinov2.encoder.layer.{layer}"
_ATTENTION, _FEED_FORWARD = f"{_OURS}.self_attention.sublayer", f"{_OURS}.feed_forward.sublayer"
_RULES = (
    *modules("embeddings", "dinov2.embeddings.patch_embeddings.projection"),
    Rule("embeddings.class_token", "dinov2.embeddings.cls_token"),
    Rule("embeddings.mask_token", "dinov2.embeddings.mask_token", is_optional=True),
    Rule("embeddings.position", "dinov2.embeddings.position_embeddings"),
    *modules(f"{_ATTENTION}.inner.query", f"{_THEIRS}.attention.attention.query", is_bias_optional=True),
    *modules(f"{_ATTENTION}.inner.key", f"{_THEIRS}.attention.attention.key", is_bias_optional=True),
    *modules(f"{_ATTENTION}.inner.value", f"{_THEIRS}.attention.attention.value", is_bias_optional=True),
    *modules(f"{_ATTENTION}.inner.output", f"{_THEIRS}.attention.output.dense"),
    Rule(f"{_ATTENTION}.weight", f"{_THEIRS}.layer_scale1.lambda1"),
    *modules(f"{_OURS}.self_attention.norm", f"{_THEIRS}.norm1"),
    Rule(f"{_FEED_FORWARD}.weight", f"{_THEIRS}.layer_scale2.lambda1"),
    *modules(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.norm2"),
    *modules("encoder.norm", "dinov2.layernorm"),
)
_PLAIN = (
    *modules(f"{_FEED_FORWARD}.inner.up", f"{_THEIRS}.mlp.fc1"),
    *modules(f"{_FEED_FORWARD}.inner.down", f"{_THEIRS}.mlp.fc2"),
)
_GATED = (
    *(
        Rule(tuple(f"{_FEED_FORWARD}.inner.{part}.{kind}" for part in ("gate", "up")), f"{_THEIRS}.mlp.weights_in.{kind}", Split(2))
        for kind in ("weight", "bias")
    ),
    *modules(f"{_FEED_FORWARD}.inner.down", f"{_THEIRS}.mlp.weights_out"),
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    rules = _RULES + (_GATED if values.get("is_gated") else _PLAIN)
    if task == "classification":
        rules += modules("head.output", "classifier")
    prefix = Prefix("dinov2.", ("embeddings", "encoder", "layernorm"), written=task != "base")
    return Mapping(rules, prefix, ignore=(Ignore("classifier.*", "the head of a classifier"),) if task == "base" else ())


DINOV2 = FamilyConverter(
    model_type="dinov2",
    table=ConfigTable(_FIELDS, _REQUIRE, (image_sizes(patch_size=14),)),
    architectures={"base": "Dinov2Model", "classification": "Dinov2ForImageClassification"},
    module_names=(
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
    ),
    mappings=_mapping,
    sizes={f"{_ATTENTION}.inner.output.weight": ("hidden_size", "hidden_size")},
)
"""The converter of model_type "dinov2"."""
