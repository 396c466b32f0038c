"""LLaMA (Touvron et al., 2023): RMS norms before every sublayer, rotary positions, grouped key/value heads, gated feed-forwards.

Mistral, Qwen2 and Qwen3 kept its shape. They differ by biases, a sliding window, and a norm on each query and key head, which are
options here; each has a file with its own defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Attention,
    Decoder,
    FeedForward,
    FeedForwardBlock,
    RMSNorm,
    RotaryEmbedding,
    RotaryScaling,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings, DecoderModel

__all__ = ["Llama", "LlamaConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig(DecoderConfig):
    """Sizes and options of a LLaMA; the defaults are Llama-2-7b's."""

    vocab_size: int = 32000
    """Rows of the token embedding."""
    hidden_size: int = 4096
    """D."""
    num_layers: int = 32
    """Transformer blocks, at least 1."""
    num_heads: int = 32
    """Query heads of a block."""
    num_key_value_heads: int = 32
    """Key and value heads of a block, a divisor of num_heads."""
    head_size: int = 128
    """H; it need not be hidden_size / num_heads."""
    intermediate_size: int = 11008
    """Width of the feed-forward network."""
    activation: str = "silu"
    """Of the feed-forward network's gate, by Hugging Face's name."""
    norm_eps: float = 1e-6
    """Added to the mean square in every norm."""
    max_positions: int = 2048
    """The longest sequence, in tokens."""
    tie_word_embeddings: bool = False
    """Whether the language model's head is the token embedding."""
    rope_theta: float = 10000.0
    """Base of the rotary wavelengths."""
    rope_scaling: Mapping[str, Any] | None = None
    """Stretching of the rotary wavelengths for longer sequences: the fields of `RotaryScaling`."""
    attention_bias: bool = False
    """Whether query, key and value have a bias."""
    output_bias: bool = False
    """Whether the attention's output has a bias."""
    feed_forward_bias: bool = False
    """Whether the feed-forward network has biases."""
    has_head_norms: bool = False
    """Whether each query and key head is normalised before it is rotated."""
    window: int | None = None
    """Tokens that a layer with a sliding window sees, itself included; None for all."""
    window_layers: tuple[int, ...] | None = None
    """The layers, from 0, that have the window; None for all."""

    def __post_init__(self) -> None:
        """Check the values."""
        DecoderConfig.__post_init__(self)
        for name in ("num_key_value_heads", "head_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.num_heads % self.num_key_value_heads:
            raise ConfigError(f"num_key_value_heads={self.num_key_value_heads} does not divide num_heads={self.num_heads}")
        if self.head_size % 2:
            raise ConfigError(f"head_size={self.head_size} must be even for rotary positions")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window={self.window} must be at least 1, or None for no window")


class Llama(DecoderModel):
    """LLaMA for one of five tasks, equal to transformers' `Llama...` classes.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "llama"
    config_class = LlamaConfig
    config: LlamaConfig

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the token table."""
        return DecoderEmbeddings(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens: dynamic scaling stretches positions as far as its factor."""
        scaling = self.config.rope_scaling
        if scaling is None or scaling["kind"] != "dynamic":
            return self.config.max_positions
        return int(self.config.max_positions * scaling["factor"])

    @property
    def max_cached_length(self) -> int:
        """The longest sequence that can be written with caches: beyond it dynamic scaling would turn earlier keys anew."""
        return self.config.max_positions

    @property
    def residual_scale(self) -> float:
        """Factor on a sublayer's output before it is added (MiniCPM)."""
        return 1.0

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks, the last norm and the rotary positions."""
        assert isinstance(config, LlamaConfig)
        return Decoder(
            (self._block(config, layer) for layer in range(config.num_layers)),
            RMSNorm(config.hidden_size, config.norm_eps),
            RotaryEmbedding(
                config.head_size,
                theta=config.rope_theta,
                scaling=None if config.rope_scaling is None else RotaryScaling(**config.rope_scaling),
            ),
        )

    def build_feed_forward(self, config: LlamaConfig, layer: int) -> nn.Module:
        """Return the feed-forward network of a layer."""
        return FeedForward(
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            is_gated=True,
            bias=config.feed_forward_bias,
        )

    def _block(self, config: LlamaConfig, layer: int) -> TransformerBlock:
        attention, feed_forward = _attention(config, layer), self.build_feed_forward(config, layer)
        norms = [RMSNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
        return TransformerBlock(
            SelfAttentionBlock(attention, norms[0], residual_scale=self.residual_scale),
            FeedForwardBlock(feed_forward, norms[1], residual_scale=self.residual_scale),
        )


def _attention(config: LlamaConfig, layer: int) -> Attention:
    has_window = config.window_layers is None or layer in config.window_layers
    return Attention(
        config.hidden_size,
        config.num_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_size=config.head_size,
        bias=config.attention_bias,
        output_bias=config.output_bias,
        dropout=config.attention_dropout,
        is_causal=True,
        window=config.window if has_window else None,
        query_norm=RMSNorm(config.head_size, config.norm_eps) if config.has_head_norms else None,
        key_norm=RMSNorm(config.head_size, config.norm_eps) if config.has_head_norms else None,
    )
