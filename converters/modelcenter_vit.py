"""ModelCenter's ViT: its tensor names and config keys, which are not those of its language models. Tables only.

Its blocks stand in `blocks`, its norms stand where Hugging Face's do, and their epsilon is in no config: it is 1e-5, where the
published ViT has 1e-12.
"""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, probability, size
from modelzoo.converters.mapping import Mapping, Rule, modules
from modelzoo.errors import ConfigError

__all__ = ["VIT_ANCHOR", "VIT_KEYS", "VIT_SHAPES", "read_vit_values", "vit_mapping"]

VIT_ANCHOR = "patch_embed.proj.weight"
"""A tensor that every file has."""

VIT_KEYS = frozenset((
    "img_size", "patch_size", "channels_in", "num_classes", "hidden_size", "num_layers", "num_heads", "mlp_size", "attn_bias",
    "attn_scale", "norm_bias", "ffn_bias", "representation_size", "drop",
))  # fmt: skip
"""What ModelCenter's VitConfig takes."""

VIT_SHAPES = {
    "patch_embed.proj.weight": "DCpp", "patch_embed.proj.bias": "D", "patch_embed.cls_token": "11D", "patch_embed.pos_embed": "1XD",
    "head.weight": "LD", "head.bias": "L",
}  # fmt: skip
"""By the key: D hidden_size, C channels, p the patch's side, X positions, L classes."""

_SAME = "the parameters are those of Hugging Face's ViT"
_TABLE = ConfigTable(
    (
        Field("image_side", "img_size", 224, size(2**16)),
        Field("patch_side", "patch_size", 16, size(2**16)),
        Field("num_channels", "channels_in", 3, size(2**10)),
        Field("num_classes", "num_classes", 1000, size(2**20)),
        Field("hidden_size", "hidden_size", 768, size(2**17)),
        Field("num_layers", "num_layers", 12, size(2**12)),
        Field("num_heads", "num_heads", 12, size(2**12)),
        Field("intermediate_size", "mlp_size", 3072, size(2**20)),
        *(Field(name, "drop", 0.0, probability()) for name in ("hidden_dropout", "attention_dropout")),
    ),
    (
        *(Require(key, (True,), _SAME) for key in ("attn_bias", "norm_bias", "ffn_bias")),
        Require("representation_size", (None,), "Hugging Face's classifier has no layer before it"),
    ),
)


def read_vit_values(source: dict[str, Any]) -> dict[str, Any]:
    """Read ModelCenter's config.json of a ViT: values by our names, ModelCenter's defaults for absent keys.

    Args:
        source: The parsed file.

    Raises:
        ConfigError: The file has keys of another family, or values that Hugging Face's ViT has not.
    """
    foreign = sorted({"dim_model", "dim_head", "dim_ff", "vocab_size", "num_hidden_layers", "image_size"} & set(source))
    if foreign:
        raise ConfigError(
            f"config.json is not one of ModelCenter's vit: {foreign[0]}: expected ModelCenter's own keys of a ViT (img_size, "
            "mlp_size, ...), found one of another family or of Hugging Face's"
        )
    values = _TABLE.to_ours(source)
    if values["hidden_size"] % values["num_heads"]:
        raise ConfigError(
            f"config.json: num_heads: expected a divisor of hidden_size={values['hidden_size']}, found {values['num_heads']}"
        )
    image, patch = values.pop("image_side"), values.pop("patch_side")
    return {
        **values,
        "image_size": (image, image),
        "patch_size": (patch, patch),
        "head_size": values["hidden_size"] // values["num_heads"],
        "num_labels": values["num_classes"],
        "activation": "gelu",
        "norm_eps": 1e-5,
        "tied": False,
        "num_positions": (image // patch) ** 2 + 1,
    }


def vit_mapping(values: MappingABC[str, Any], layout: object) -> Mapping:
    """Return the table of names; the arguments are those of all families."""
    ours, theirs = "vit.encoder.layer.{layer}", "blocks.layers.{layer}"
    names = ("attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense")
    parts = ("project_q", "project_k", "project_v", "attention_out")
    attention = (
        rule
        for name, part in zip(names, parts, strict=True)
        for rule in modules(f"{ours}.{name}", f"{theirs}.self_att.self_attention.{part}")
    )
    return Mapping(
        (
            *modules("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"),
            Rule("vit.embeddings.cls_token", "patch_embed.cls_token"),
            Rule("vit.embeddings.position_embeddings", "patch_embed.pos_embed"),
            *attention,
            *modules(f"{ours}.layernorm_before", f"{theirs}.self_att.layernorm_before_attention"),
            *modules(f"{ours}.intermediate.dense", f"{theirs}.ffn.ffn.w_in.w"),
            *modules(f"{ours}.output.dense", f"{theirs}.ffn.ffn.w_out"),
            *modules(f"{ours}.layernorm_after", f"{theirs}.ffn.layernorm_before_ffn"),
            *modules("vit.layernorm", "blocks.output_layernorm"),
            *modules("classifier", "head"),
        )
    )
