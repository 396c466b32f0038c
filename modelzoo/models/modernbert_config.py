"""Sizes and options of ModernBERT."""

from dataclasses import dataclass
from typing import Literal

from modelzoo.errors import ConfigError
from modelzoo.layers import activation
from modelzoo.models.encoder_parts import EncoderConfig

__all__ = ["ModernBertConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModernBertConfig(EncoderConfig):
    """Sizes and options of a ModernBERT; the defaults are ModernBERT-base's."""

    vocab_size: int = 50368
    """Rows of the token embedding."""
    num_layers: int = 22
    """Transformer blocks, at least 1."""
    intermediate_size: int = 1152
    """Width of the feed-forward network."""
    max_positions: int = 8192
    """The longest sequence, in tokens."""
    pad_token_id: int | None = 50283
    """Id of the padding token."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    hidden_dropout: float = 0.0
    """Probability of dropping a feature after the embeddings."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight, and a feature of the attention's output."""
    feed_forward_dropout: float = 0.0
    """Probability of dropping an inner feature of the feed-forward network."""
    classifier_dropout: float | None = 0.0
    """Probability of dropping a feature before the scores."""
    local_attention: int = 128
    """Width of the sliding window: a token sees half of it to each side, and itself."""
    global_layers: tuple[int, ...] | None = None
    """The layers, from 0, that see the whole text; None for every third."""
    global_rope_theta: float = 160000.0
    """Base of the rotary wavelengths of layers that see the whole text."""
    local_rope_theta: float = 10000.0
    """Base of the rotary wavelengths of layers with a window."""
    norm_bias: bool = False
    """Whether norms have a bias."""
    attention_bias: bool = False
    """Whether the attention's maps have a bias."""
    feed_forward_bias: bool = False
    """Whether the feed-forward network's maps have a bias."""
    classifier_bias: bool = False
    """Whether the map before the scores has a bias."""
    decoder_bias: bool = True
    """Whether the language model adds a bias a token."""
    classifier_activation: str = "gelu"
    """After the map before the scores, by Hugging Face's name."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """What the classifier reads: the first token, or the mean of all."""

    def __post_init__(self) -> None:
        """Check the values."""
        EncoderConfig.__post_init__(self)
        if self.classifier_dropout is None:
            raise ConfigError("classifier_dropout=None: ModernBERT's config.json takes a number alone; give hidden_dropout's")
        if self.hidden_size // self.num_heads % 2:
            raise ConfigError(f"hidden_size={self.hidden_size} / num_heads={self.num_heads} must be even for rotary positions")
        if not 0 <= self.feed_forward_dropout < 1:
            raise ConfigError(f"feed_forward_dropout={self.feed_forward_dropout} must lie in 0 to 1, 1 excluded")
        if self.local_attention < 1:
            raise ConfigError(f"local_attention={self.local_attention} must be at least 1")
        for name in ("global_rope_theta", "local_rope_theta"):
            if not getattr(self, name) > 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be greater than 1")
        strange = [layer for layer in self.global_layers or () if not 0 <= layer < self.num_layers]
        if strange:
            raise ConfigError(
                f"global_layers: layer {strange[0]} is not in 0 to {self.num_layers - 1} (num_layers={self.num_layers})"
            )
        if self.classifier_pooling not in ("cls", "mean"):
            raise ConfigError(f"classifier_pooling={self.classifier_pooling!r} is not known; use 'cls' or 'mean'")
        activation(self.classifier_activation)

    def is_global(self, layer: int) -> bool:
        """Return whether a layer, from 0, sees the whole text."""
        return layer % 3 == 0 if self.global_layers is None else layer in self.global_layers
