"""ModelCenter's config keys beside our config's arguments, one table for each family. Tables only.

An absent key means what ModelCenter's config class of the family means by it. The keys of initialisation and precision
(`att_init_std`, `half`, `int8`, `att_mask_value`, ...) say nothing about a trained model and are not read.
"""

from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, choice, number, probability, size, token_id
from modelzoo.converters.modelcenter_vit import VIT_KEYS, read_vit_values
from modelzoo.errors import ConfigError, listing

__all__ = ["KNOWN_KEYS", "TABLES", "our_values", "read_values"]

KNOWN_KEYS = frozenset((
    "vocab_size", "type_size", "position_size", "dim_model", "num_heads", "num_heads_kv", "dim_head", "dim_ff", "num_layers",
    "num_encoder_layers", "num_decoder_layers", "dropout_p", "emb_init_mean", "emb_init_std", "pos_bias_type", "pos_rotary_dim",
    "pos_init_mean", "pos_init_std", "position_bias_num_buckets", "position_bias_max_distance", "norm_init_var", "norm_bias",
    "norm_eps", "att_init_mean", "att_init_std", "att_bias", "att_mask_value", "ffn_init_mean", "ffn_init_std", "ffn_bias",
    "ffn_activate_fn", "proj_init_mean", "proj_init_std", "proj_bias", "length_scale", "attn_scale", "half", "int8", "tied",
    "cls_head", "post_layer_norm", "use_cache", "pad_token_id", "scale", "sep_tok_id", "attention_window", *VIT_KEYS,
))  # fmt: skip
"""What ModelCenter's config classes of these families take."""

_HUGGING_FACE_KEYS = frozenset((
    "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "n_embd",
    "n_layer", "n_head", "d_model", "d_kv", "d_ff", "torch_dtype", "transformers_version",
))  # fmt: skip
"""Keys of Hugging Face's configs that no config of ModelCenter has."""

_ONLY = {
    "type_size": ("bert", "roberta", "longformer"),
    "attention_window": ("longformer",),
    "pos_rotary_dim": ("gptj",),
    "num_heads_kv": ("llama",),
    "num_encoder_layers": ("t5", "mt5"),
    "num_decoder_layers": ("t5", "mt5"),
    "scale": ("t5", "mt5"),
}


def _foreign_keys(family: str, source: dict[str, Any]) -> list[str]:
    """Return a line for each key of a config.json that ModelCenter's config of this family cannot have."""
    lines = [
        f"{key}: expected ModelCenter's own keys (dim_model, num_heads, ...), found one of Hugging Face's; "
        "a Hugging Face folder is converted without --from"
        for key in source
        if key in _HUGGING_FACE_KEYS
    ]
    for key, families in _ONLY.items():
        if key in source and family not in families:
            lines.append(
                f"{key}: expected a config of {family}, found a key of {' and '.join(families)} alone; is the family right?"
            )
    return lines


def _optional_boolean(value: object) -> str | None:
    return None if value is None else boolean(value)


def _key_value_heads(value: object) -> str | None:
    return None if value == -1 else size(2**12)(value)


def _table(
    own: tuple[Field, ...],
    requirements: dict[str, Any],
    *,
    sizes: tuple[int | None, ...],
    norm_eps: float,
    tied: bool | None,
    activations: tuple[str, ...],
    dropouts: tuple[str, ...] = ("hidden_dropout", "attention_dropout"),
    dropout: float = 0.1,
) -> ConfigTable:
    """Return a family's table; `sizes` are vocab_size, dim_model, num_heads, dim_head and dim_ff, None where a file must say it."""
    vocab_size, dim_model, num_heads, dim_head, dim_ff = sizes
    fields = (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "dim_model", dim_model, size(2**17)),
        Field("num_heads", "num_heads", num_heads, size(2**12)),
        Field("head_size", "dim_head", dim_head, size(2**12)),
        Field("intermediate_size", "dim_ff", dim_ff, size(2**20)),
        Field("norm_eps", "norm_eps", norm_eps, number(0, 1)),
        Field("activation", "ffn_activate_fn", activations[0], choice(activations)),
        Field("tied", "tied", tied, _optional_boolean),
        *(Field(name, "dropout_p", dropout, probability()) for name in dropouts),
    )
    reasons = {
        "length_scale": "maps divided by the root of their width are not of this family",
        "attn_scale": "scores are divided by the root of the head size as in the family's own models",
        "post_layer_norm": "the norms stand where the family's own models have them",
        "pos_bias_type": "positions are those of the family's own models",
    }
    stated = {"length_scale": False, **requirements}
    require = tuple(
        Require(key, (value,), reasons.get(key, "the parameters are those of the family's own models"))
        for key, value in stated.items()
    )
    return ConfigTable((*fields, *own), require)


def _layers(default: int | None) -> Field:
    return Field("num_layers", "num_layers", default, size(2**12))


def _positions(default: int) -> Field:
    return Field("max_positions", "position_size", default, size(2**22))


_ENCODER = {
    "norm_bias": True,
    "att_bias": True,
    "ffn_bias": True,
    "attn_scale": True,
    "post_layer_norm": True,
    "pos_bias_type": "none",
}
_DECODER = {**_ENCODER, "post_layer_norm": False}
_PLAIN = ("gelu", "gelu_new", "relu")


def _t5(*, tied: bool) -> ConfigTable:
    """Return T5's table; mT5 is never tied, and Hugging Face's has no tied form that divides."""
    biases = dict.fromkeys(("norm_bias", "att_bias", "ffn_bias", "attn_scale", "post_layer_norm"), False)
    return _table(
        (
            Field("num_layers", "num_encoder_layers", 12, size(2**12)),
            Field("num_decoder_layers", "num_decoder_layers", 12, size(2**12)),
            Field("num_buckets", "position_bias_num_buckets", 32, size(2**16)),
            Field("max_distance", "position_bias_max_distance", 128, size(2**24)),
            Field("scale", "scale", False, boolean),
        ),
        {**biases, "pos_bias_type": "relative", **({} if tied else {"tied": False})},
        sizes=(32128, 768, 12, 64, 3072),
        norm_eps=1e-6,
        tied=tied,
        activations=("relu", "gelu", "gelu_new", "gated_gelu", "gated_gelu_new", "gated_relu", "gated_silu"),
        dropouts=("dropout",),
        dropout=0.0,
    )


TABLES: dict[str, ConfigTable] = {
    "bert": _table(
        (_layers(12), _positions(512), Field("type_vocab_size", "type_size", 2, size(2**16))),
        _ENCODER,
        sizes=(119547, 768, 12, 64, 3072),
        norm_eps=1e-12,
        tied=None,
        activations=_PLAIN,
    ),
    "roberta": _table(
        (
            _layers(24),
            _positions(514),
            Field("type_vocab_size", "type_size", 1, size(2**16)),
            Field("pad_token_id", "pad_token_id", 1, token_id),
        ),
        _ENCODER,
        sizes=(50265, 1024, 16, 64, 4096),
        norm_eps=1e-5,
        tied=True,
        activations=_PLAIN,
    ),
    "longformer": _table(
        (
            _layers(12),
            _positions(512),
            Field("type_vocab_size", "type_size", 2, size(2**16)),
            Field("pad_token_id", "pad_token_id", 1, token_id),
            Field("sep_token_id", "sep_tok_id", 2, token_id),
            Field("attention_window", "attention_window", 512, size(2**22)),
        ),
        _ENCODER,
        sizes=(119547, 768, 12, 64, 3072),
        norm_eps=1e-12,
        tied=True,
        activations=_PLAIN,
    ),
    "gpt2": _table(
        (_layers(12), _positions(1024)),
        _DECODER,
        sizes=(50258, 768, 12, 64, 3072),
        norm_eps=1e-5,
        tied=True,
        activations=_PLAIN,
        dropouts=("hidden_dropout", "attention_dropout", "embedding_dropout"),
    ),
    "gptj": _table(
        (_layers(28), Field("rotary_size", "pos_rotary_dim", 64, size(2**12))),
        {**_DECODER, "att_bias": False, "pos_bias_type": "rotary", "tied": False},
        sizes=(50400, 4096, 16, 256, 16384),
        norm_eps=1e-5,
        tied=False,
        activations=_PLAIN,
        dropouts=("hidden_dropout", "attention_dropout", "embedding_dropout"),
        dropout=0.0,
    ),
    "opt": _table(
        (_layers(None), _positions(2048), Field("pad_token_id", "pad_token_id", 1, token_id)),
        {**_DECODER, "norm_eps": 1e-5},
        sizes=(50272, None, None, None, None),
        norm_eps=1e-5,
        tied=True,
        activations=("relu", "gelu", "gelu_new"),
    ),
    "llama": _table(
        (_layers(32), Field("num_key_value_heads", "num_heads_kv", -1, _key_value_heads)),
        {
            **dict.fromkeys(("norm_bias", "att_bias", "ffn_bias", "post_layer_norm"), False),
            "attn_scale": True,
            "pos_bias_type": "rotary",
        },
        sizes=(32000, 4096, 32, 128, 11008),
        norm_eps=1e-6,
        tied=False,
        activations=("gated_silu", "gated_gelu", "gated_gelu_new", "gated_relu"),
        dropouts=("attention_dropout",),
        dropout=0.0,
    ),
    "t5": _t5(tied=True),
    "mt5": _t5(tied=False),
}
"""By the model_type that Hugging Face gives the family."""

_OWN_HEAD_SIZE = ("llama", "t5", "mt5")


def read_values(family: str, source: dict[str, Any]) -> dict[str, Any]:
    """Read ModelCenter's config.json of a family: values by our names, ModelCenter's defaults for absent keys.

    Args:
        family: One of `TABLES`, or "vit".
        source: The parsed file.

    Raises:
        ConfigError: Keys of other families or of Hugging Face, or values that the family's models in Hugging Face's form have not.
    """
    if family == "vit":
        return read_vit_values(source)
    problems = _foreign_keys(family, source)
    if problems:
        raise ConfigError(f"config.json is not one of ModelCenter's {family}:\n{listing(problems)}")
    values = TABLES[family].to_ours(source)
    if values.get("num_key_value_heads") == -1:
        values["num_key_value_heads"] = values["num_heads"]
    if family == "opt":
        values["position_rows"] = values["max_positions"] + 2  # its positions count from 2
    rows = values["num_heads"] * values["head_size"]
    if family not in _OWN_HEAD_SIZE and rows != values["hidden_size"]:
        raise ConfigError(
            f"config.json: dim_head: expected dim_model / num_heads = {values['hidden_size']} / {values['num_heads']}, "
            f"found {values['head_size']}; Hugging Face's {family} has no other"
        )
    return values


def our_values(family: str, values: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Return our config's arguments for what `read_values` read.

    Args:
        family: One of `TABLES`.
        values: As read; `vocab_size` is that of the written table.
        is_tied: Whether the output layer is the token table.
    """
    activation = str(values["activation"])
    result = {**values, "activation": activation.removeprefix("gated_"), "tie_word_embeddings": is_tied}
    if family == "vit":
        result["pooler_size"] = values["hidden_size"]  # of the pooler that a classifier has not: Hugging Face's default
    if family == "opt":
        result["word_size"] = values["hidden_size"]
    if family in ("t5", "mt5"):
        result["is_gated"] = activation.startswith("gated_")
        result["scale_decoder_outputs"] = is_tied
        if activation == "gated_gelu":
            result["activation"] = "gelu_python"  # Hugging Face's "gated-gelu" is the tanh form, ModelCenter's is erf
    return result
