"""Sizes and options of GLM-10B."""

from dataclasses import dataclass

from modelzoo.errors import ConfigError
from modelzoo.models.cpm_decoder import CpmConfig

__all__ = ["GLM10BConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GLM10BConfig(CpmConfig):
    """Sizes and options of a GLM-10B; the defaults are those of ModelCenter's GLMConfig."""

    vocab_size: int = 50048
    """Rows of the token embedding."""
    hidden_size: int = 1024
    """D."""
    num_layers: int = 24
    """Transformer blocks, at least 1."""
    num_heads: int = 16
    """Attention heads of a block."""
    head_size: int = 64
    """H."""
    intermediate_size: int = 4096
    """Width of the feed-forward network."""
    is_gated: bool = False
    """Whether the feed-forward network is gated."""
    max_positions: int = 1025
    """Rows of either position table."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    norm_bias: bool = True
    """Whether norms subtract the mean and have a bias (LayerNorm) or not (RMSNorm)."""
    attention_bias: bool = True
    """Whether query, key, value and output have a bias."""
    feed_forward_bias: bool = True
    """Whether the maps of the feed-forward network have a bias."""
    hidden_dropout: float = 0.1
    """Probability of dropping a feature after every sublayer."""
    embedding_dropout: float = 0.1
    """Probability of dropping a feature after the embeddings."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    start_token_id: int = 50006
    """Id of the token that begins a blank."""
    end_token_id: int = 50007
    """Id of the token that ends a blank."""
    mask_token_id: int = 50008
    """Id of the token that stands for a blank in the text."""

    def __post_init__(self) -> None:
        """Check the values."""
        CpmConfig.__post_init__(self)
        if self.length_scale:
            raise ConfigError("length_scale=True is not built for GLM-10B; leave it out")
        if not self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings=False is not built for GLM-10B, whose head is its token table; leave it out")
