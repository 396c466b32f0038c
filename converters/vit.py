"""ViT (Dosovitskiy et al., 2021): Hugging Face's names and fields beside ours. Tables only.

The names are those of files; transformers has had other names in memory since version 5.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Derived, Field, boolean, choice, number, probability, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL
from modelzoo.errors import ConfigError

__all__ = ["VIT", "image_sizes"]


def _hidden_size(source: MappingABC[str, Any]) -> Any:
    return source.get("hidden_size", 768)


_FIELDS = (
    Field("hidden_size", "hidden_size", 768, size(2**17)),
    Field("num_layers", "num_hidden_layers", 12, size(2**12)),
    Field("num_heads", "num_attention_heads", 12, size(2**12)),
    Field("intermediate_size", "intermediate_size", 3072, size(2**20)),
    Field("activation", "hidden_act", "gelu", choice(ACTIVATIONS)),
    Field("hidden_dropout", "hidden_dropout_prob", 0.0, probability()),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0, probability()),
    Field("norm_eps", "layer_norm_eps", 1e-12, number(0, 1)),
    Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
    Field("num_channels", "num_channels", 3, size(2**10)),
    Field("attention_bias", "qkv_bias", True, boolean),
    Field("pooler_size", "pooler_output_size", None, size(2**17), _hidden_size),
    Field("pooler_activation", "pooler_act", "tanh", choice(ACTIVATIONS)),
)


def image_sizes(*, image_size: int = 224, patch_size: int = 16) -> Derived:
    """Return the arguments `image_size` and `patch_size`: one number for height and width, or a list of the two.

    Args:
        image_size: Of an image where the config does not say, in pixels.
        patch_size: Of a patch where the config does not say, in pixels.
    """
    defaults = {"image_size": image_size, "patch_size": patch_size}
    return Derived(lambda source: _read_sizes(source, defaults), _write_sizes)


def _read_sizes(source: MappingABC[str, Any], defaults: MappingABC[str, int]) -> dict[str, Any]:
    found = {}
    for name, default in defaults.items():
        stated = source.get(name, default)
        both = list(stated) if isinstance(stated, list | tuple) else [stated, stated]
        if len(both) != 2 or any(size(2**16)(side) for side in both):
            raise ConfigError(f"{name}: expected a number of pixels from 1 to {2**16} or a list of two, found {stated!r:.80}")
        found[name] = (both[0], both[1])
    return found


def _write_sizes(values: MappingABC[str, Any], result: dict[str, Any]) -> None:
    for name in ("image_size", "patch_size"):
        height, width = values[name]
        result[name] = height if height == width else [height, width]


_OURS, _THEIRS = "encoder.layers.{layer}", "vit.encoder.layer.{layer}"
_RULES = (
    *modules("embeddings", "vit.embeddings.patch_embeddings.projection"),
    Rule("embeddings.class_token", "vit.embeddings.cls_token"),
    Rule("embeddings.position", "vit.embeddings.position_embeddings"),
    *modules(f"{_OURS}.self_attention.sublayer.query", f"{_THEIRS}.attention.attention.query", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.key", f"{_THEIRS}.attention.attention.key", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.value", f"{_THEIRS}.attention.attention.value", is_bias_optional=True),
    *modules(f"{_OURS}.self_attention.sublayer.output", f"{_THEIRS}.attention.output.dense"),
    *modules(f"{_OURS}.self_attention.norm", f"{_THEIRS}.layernorm_before"),
    *modules(f"{_OURS}.feed_forward.sublayer.up", f"{_THEIRS}.intermediate.dense"),
    *modules(f"{_OURS}.feed_forward.sublayer.down", f"{_THEIRS}.output.dense"),
    *modules(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.layernorm_after"),
    *modules("encoder.norm", "vit.layernorm"),
)
_HEADS: dict[Task, tuple[Rule, ...]] = {
    "base": modules("pooler.dense", "vit.pooler.dense"),
    "classification": modules("head.output", "classifier"),
}
_MASKS = (
    Ignore("vit.embeddings.mask_token", "masked image modelling is not a task here"),
    Ignore("decoder.*", "masked image modelling is not a task here"),
)
_OTHERS: dict[Task, Ignore] = {
    "base": Ignore("classifier.*", "the head of a classifier"),
    "classification": Ignore("vit.pooler.*", "transformers has no pooler for this task"),
}


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    prefix = Prefix("vit.", ("embeddings", "encoder", "layernorm", "pooler"), written=task != "base")
    return Mapping(_RULES + _HEADS[task], prefix, ignore=(*_MASKS, _OTHERS[task]))


VIT = FamilyConverter(
    model_type="vit",
    table=ConfigTable(_FIELDS, (SINGLE_LABEL,), (image_sizes(),)),
    architectures={"base": "ViTModel", "classification": "ViTForImageClassification"},
    module_names=(
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("encoder.layer.", "layers."),
    ),
    mappings=_mapping,
    sizes={
        "encoder.layers.{layer}.self_attention.sublayer.output.weight": ("hidden_size", "hidden_size"),
        "encoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
        "pooler.dense.weight": ("pooler_size", "hidden_size"),
        "head.output.weight": ("num_labels", "hidden_size"),
    },
)
"""The converter of model_type "vit"."""
