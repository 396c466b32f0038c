"""What the configs and files of GPT-2 and GPT-J share. Tables only."""

from modelzoo.converters.config_table import Field, choice, number, probability, size, token_id
from modelzoo.converters.mapping import Ignore
from modelzoo.converters.names import ACTIVATIONS

__all__ = ["CAUSAL_MASKS", "gpt_fields"]

CAUSAL_MASKS = tuple(
    Ignore(f"transformer.h.{{layer}}.attn.{name}", "the causal mask, a constant buffer of old transformers")
    for name in ("bias", "masked_bias")
)
"""What old files hold beside the parameters."""


def gpt_fields(
    *, vocab_size: int, max_positions: Field, hidden_size: int, num_layers: int, num_heads: int, dropout: float
) -> tuple[Field, ...]:
    """Return the fields that both have under the same names, with the defaults of one of them."""
    return (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        max_positions,
        Field("hidden_size", "n_embd", hidden_size, size(2**17)),
        Field("num_layers", "n_layer", num_layers, size(2**12)),
        Field("num_heads", "n_head", num_heads, size(2**12)),
        Field("intermediate_size", "n_inner", None, size(2**20), lambda source: 4 * int(source.get("n_embd", hidden_size))),
        Field("activation", "activation_function", "gelu_new", choice(ACTIVATIONS)),
        Field("hidden_dropout", "resid_pdrop", dropout, probability()),
        Field("embedding_dropout", "embd_pdrop", dropout, probability()),
        Field("attention_dropout", "attn_pdrop", dropout, probability()),
        Field("norm_eps", "layer_norm_epsilon", 1e-5, number(0, 1)),
        Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
        Field("pad_token_id", "pad_token_id", None, token_id),
    )
