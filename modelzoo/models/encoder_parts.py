"""What encoders are configured with and built from: sizes, the embeddings of texts, a post-norm stack."""

from dataclasses import dataclass

from torch import Tensor, nn

from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Attention,
    Dropout,
    Embedding,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    LearnedPositionEmbedding,
    Linear,
    SelfAttentionBlock,
    TransformerBlock,
    activation,
)
from modelzoo.models.model import ModelConfig

__all__ = ["EncoderConfig", "SegmentedConfig", "TextEmbeddings", "post_norm_encoder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig(ModelConfig):
    """Sizes and options of an encoder; the defaults are BERT-base's."""

    hidden_size: int = 768
    """D, a multiple of num_heads."""
    num_layers: int = 12
    """Transformer blocks, at least 1."""
    num_heads: int = 12
    """Attention heads of a block."""
    intermediate_size: int = 3072
    """Width of the feed-forward network."""
    activation: str = "gelu"
    """Of the feed-forward network, by Hugging Face's name."""
    hidden_dropout: float = 0.1
    """Probability of dropping a feature after the embeddings and after every sublayer."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    classifier_dropout: float | None = None
    """Probability of dropping a feature before the classifier; None for hidden_dropout."""
    max_positions: int = 512
    """Positions that a token may have."""
    norm_eps: float = 1e-12
    """Added to the variance in every norm."""

    def __post_init__(self) -> None:
        """Check the values."""
        # Not super(): a dataclass with slots is a new class, which the zero-argument form does not see.
        ModelConfig.__post_init__(self)
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            near = [heads for heads in range(1, self.hidden_size + 1) if self.hidden_size % heads == 0]
            best = min(near, key=lambda heads: abs(heads - self.num_heads))
            raise ConfigError(f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}; use {best} heads, say")
        for name in ("hidden_dropout", "attention_dropout", "classifier_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name}={value} must lie in 0 to 1, 1 excluded")
        if not self.norm_eps > 0:
            raise ConfigError(f"norm_eps={self.norm_eps} must be greater than 0")
        activation(self.activation)

    @property
    def head_dropout(self) -> float:
        """The dropout before a classifier."""
        return self.hidden_dropout if self.classifier_dropout is None else self.classifier_dropout


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentedConfig(EncoderConfig):
    """Sizes and options of an encoder whose tokens belong to segments, as the two texts of a pair; the defaults are BERT-base's."""

    type_vocab_size: int = 2
    """Rows of the segment table."""

    def __post_init__(self) -> None:
        """Check the values."""
        EncoderConfig.__post_init__(self)
        if self.type_vocab_size < 1:
            raise ConfigError(f"type_vocab_size={self.type_vocab_size} must be at least 1")


class TextEmbeddings(nn.Module):
    """norm(token + segment + position), dropout, and a map to the stack's width where the tables are narrower.

    Args:
        config: Sizes; without `type_vocab_size` there are no segments.
        position_offset: Row of the position table that position 0 uses.
        position_padding_idx: Row of the position table that gets no gradient; None for none.
        embedding_size: Width of the tables (ELECTRA); None for hidden_size.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        position_offset: int = 0,
        position_padding_idx: int | None = None,
        embedding_size: int | None = None,
    ) -> None:
        super().__init__()
        size = config.hidden_size if embedding_size is None else embedding_size
        self.token = Embedding(config.vocab_size, size, config.pad_token_id)
        self.position = LearnedPositionEmbedding(config.max_positions, size, position_padding_idx, offset=position_offset)
        self.segment = Embedding(config.type_vocab_size, size, tensor_split=None) if isinstance(config, SegmentedConfig) else None
        self.norm = LayerNorm(size, config.norm_eps)
        self.dropout = Dropout(config.hidden_dropout)
        self.projection = None if size == config.hidden_size else Linear(size, config.hidden_size)

    def forward(self, ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Embed.

        Args:
            ids: (tokens,) or (B, T) int64.
            segments: The shape of `ids`, int64; None for all zeros, and where there are no segments.
            positions: The shape of `ids`, or one that broadcasts to it, int64.

        Returns:
            (tokens, D) or (B, T, D) float.
        """
        hidden = self.token(ids)
        if self.segment is not None:
            hidden = hidden + self.segment(ids.new_zeros(1) if segments is None else segments)
        embedded: Tensor = self.dropout(self.norm(hidden + self.position(positions)))
        return embedded if self.projection is None else self.projection(embedded)


def post_norm_encoder(config: EncoderConfig, *, attention_output_dropout: float | None = None) -> Encoder:
    """Return BERT's stack.

    Args:
        config: Sizes and options.
        attention_output_dropout: Probability of dropping a feature of the attention's output; None for hidden_dropout.
    """
    dropout = config.hidden_dropout if attention_output_dropout is None else attention_output_dropout

    def block() -> TransformerBlock:
        attention = Attention(config.hidden_size, config.num_heads, dropout=config.attention_dropout)
        feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
        norms = [LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
        return TransformerBlock(
            SelfAttentionBlock(attention, norms[0], norm_position="post", dropout=dropout),
            FeedForwardBlock(feed_forward, norms[1], norm_position="post", dropout=config.hidden_dropout),
        )

    return Encoder(block() for _ in range(config.num_layers))
