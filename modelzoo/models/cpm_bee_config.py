"""Sizes and options of CPM-Bee."""

from dataclasses import dataclass

from modelzoo.errors import ConfigError
from modelzoo.models.cpm_decoder import CpmConfig

__all__ = ["CpmBeeConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CpmBeeConfig(CpmConfig):
    """Sizes and options of a CPM-Bee; the defaults are those of transformers' old CpmBeeConfig."""

    vocab_size: int = 30720
    """Rows of the token embedding."""
    hidden_size: int = 4096
    """D."""
    num_layers: int = 32
    """Transformer blocks, at least 1."""
    num_heads: int = 64
    """Attention heads of a block."""
    head_size: int = 64
    """H."""
    intermediate_size: int = 10240
    """Width of the feed-forward network."""
    num_buckets: int = 256
    """Buckets of the distances within a segment."""
    num_segment_buckets: int = 32
    """Buckets of the relations between segments; the first is for other samples of the row."""
    max_distance: int = 2048
    """Distance from which on every pair of tokens of a segment is in the last bucket."""
    distance_scale: float = 16.0
    """Angle, in units of the rotary base, by which a special token's number turns its embedding."""
    length_scale: bool = True
    """Whether the products of every map, of the token table and of the head are divided by the square root of the input's width."""
    pad_token_id: int | None = 0
    """Id of the padding token."""
    initializer_range: float = 1.0
    """Standard deviation of fresh weights."""

    def __post_init__(self) -> None:
        """Check the values."""
        CpmConfig.__post_init__(self)
        if not self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings=False is not built for CPM-Bee, whose head is its token table; leave it out")
        if self.hidden_size % 2:
            raise ConfigError(f"hidden_size={self.hidden_size} must be even: the numbers of tokens turn pairs of features")
        if self.num_segment_buckets < 1:
            raise ConfigError(f"num_segment_buckets={self.num_segment_buckets} must be at least 1")
