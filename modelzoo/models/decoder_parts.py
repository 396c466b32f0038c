"""What decoders are configured with, and their embeddings."""

from dataclasses import dataclass

from torch import Tensor, nn

from modelzoo.errors import ConfigError
from modelzoo.layers import Dropout, Embedding, LearnedPositionEmbedding, activation
from modelzoo.models.model import ModelConfig

__all__ = ["DecoderConfig", "DecoderEmbeddings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig(ModelConfig):
    """Sizes and options that all decoder-only families have."""

    hidden_size: int
    """D."""
    num_layers: int
    """Transformer blocks, at least 1."""
    num_heads: int
    """Attention heads of a block."""
    intermediate_size: int
    """Width of the feed-forward network."""
    activation: str
    """Of the feed-forward network, by Hugging Face's name."""
    norm_eps: float
    """Added to the variance, or to the mean square, in every norm."""
    max_positions: int
    """The longest sequence, in tokens."""
    hidden_dropout: float = 0.0
    """Probability of dropping a feature after every sublayer."""
    embedding_dropout: float = 0.0
    """Probability of dropping a feature after the embeddings."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight."""
    classifier_dropout: float = 0.0
    """Probability of dropping a feature before the token classifier."""
    pad_token_id: int | None = None
    """Id of the padding token, if the family has one."""

    def __post_init__(self) -> None:
        """Check the values."""
        ModelConfig.__post_init__(self)
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("hidden_dropout", "embedding_dropout", "attention_dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must lie in 0 to 1, 1 excluded")
        if self.norm_eps <= 0:
            raise ConfigError(f"norm_eps={self.norm_eps} must be greater than 0")
        activation(self.activation)


class DecoderEmbeddings(nn.Module):
    """Token rows, plus learned positions where a family has them, then dropout.

    Args:
        vocab_size: V.
        hidden_size: D.
        position: A table of positions; None for families whose attention knows positions.
        scale: Factor on the token rows (MiniCPM).
        padding_idx: Row that starts at zero and gets no gradient; None for none.
        dropout: Probability of dropping a feature in training.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        position: LearnedPositionEmbedding | None = None,
        scale: float = 1.0,
        padding_idx: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = Embedding(vocab_size, hidden_size, padding_idx, scale=scale)
        self.position = position
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed.

        Args:
            ids: (tokens,) or (B, T) int64.
            positions: The shape of `ids`, or one that broadcasts to it, int64.

        Returns:
            (tokens, D) or (B, T, D) float.
        """
        hidden = self.token(ids)
        if self.position is not None:
            hidden = hidden + self.position(positions)
        embedded: Tensor = self.dropout(hidden)
        return embedded
