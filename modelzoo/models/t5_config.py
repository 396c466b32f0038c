"""Sizes and options of T5 and mT5."""

from dataclasses import dataclass

from modelzoo.errors import ConfigError
from modelzoo.layers import activation
from modelzoo.models.model import ModelConfig

__all__ = ["MT5Config", "T5Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Config(ModelConfig):
    """Sizes and options of a T5; the defaults are t5-small's."""

    vocab_size: int = 32128
    """Rows of the token embedding."""
    hidden_size: int = 512
    """D."""
    head_size: int = 64
    """H; it need not be hidden_size / num_heads."""
    intermediate_size: int = 2048
    """Width of the feed-forward network."""
    num_layers: int = 6
    """Blocks of the encoder, at least 1."""
    num_decoder_layers: int = 6
    """Blocks of the decoder, at least 1."""
    num_heads: int = 8
    """Attention heads of a block."""
    num_buckets: int = 32
    """Buckets of the relative positions."""
    max_distance: int = 128
    """Distance from which on every pair of tokens is in the last bucket."""
    dropout: float = 0.1
    """Probability of dropping a feature, at every place of the model."""
    classifier_dropout: float = 0.0
    """Probability of dropping a feature before a classifier."""
    norm_eps: float = 1e-6
    """Added to the mean square in every norm."""
    activation: str = "relu"
    """Of the feed-forward network, by Hugging Face's name."""
    is_gated: bool = False
    """Whether the feed-forward network is gated."""
    scale_decoder_outputs: bool = True
    """Whether the head reads the decoder's output divided by sqrt(D) (v1.0)."""
    eos_token_id: int = 1
    """Id of the token that ends a text; the classifier reads the last one."""
    decoder_start_token_id: int = 0
    """Id of the token that a decoder starts from."""
    initializer_range: float = 1.0
    """Hugging Face's `initializer_factor`: a factor on each layer's own standard deviation."""

    def __post_init__(self) -> None:
        """Check the values."""
        ModelConfig.__post_init__(self)
        for name in ("hidden_size", "head_size", "intermediate_size", "num_layers", "num_decoder_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must lie in 0 to 1, 1 excluded")
        if self.norm_eps <= 0:
            raise ConfigError(f"norm_eps={self.norm_eps} must be greater than 0")
        activation(self.activation)


@dataclass(frozen=True, kw_only=True, slots=True)
class MT5Config(T5Config):
    """Sizes and options of an mT5; the defaults are mt5-small's."""

    vocab_size: int = 250112
    """Rows of the token embedding."""
    intermediate_size: int = 1024
    """Width of the feed-forward network."""
    num_layers: int = 8
    """Blocks of the encoder."""
    num_decoder_layers: int = 8
    """Blocks of the decoder."""
    num_heads: int = 6
    """Attention heads of a block."""
    activation: str = "gelu_new"
    """Of the feed-forward network, by Hugging Face's name."""
    is_gated: bool = True
    """Whether the feed-forward network is gated."""
    tie_word_embeddings: bool = False
    """Whether the head is the token embedding."""
    scale_decoder_outputs: bool = False
    """Whether the head reads the decoder's output divided by sqrt(D)."""
