"""OPT (Zhang et al., 2022): GPT-like blocks, positions with an offset of two, and in the 350m size norms after the sublayers."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Attention,
    Decoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    LearnedPositionEmbedding,
    Linear,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.layers.blocks import NormPosition
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings, DecoderModel
from modelzoo.models.heads import LinearHead

__all__ = ["OPT", "OPTConfig"]

_POSITION_OFFSET = 2  # the first rows of the position table are never used: fairseq counted positions from the padding id + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OPTConfig(DecoderConfig):
    """Sizes and options of an OPT; the defaults are opt-125m's."""

    vocab_size: int = 50272
    """Rows of the token embedding."""
    hidden_size: int = 768
    """D."""
    word_size: int = 768
    """Width of a token's embedding; another width than D is projected on the way in and out (350m)."""
    num_layers: int = 12
    """Transformer blocks, at least 1."""
    num_heads: int = 12
    """Attention heads of a block."""
    intermediate_size: int = 3072
    """Width of the feed-forward network."""
    activation: str = "relu"
    """Of the feed-forward network, by Hugging Face's name."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    max_positions: int = 2048
    """The longest sequence, in tokens; the position table has two rows more."""
    hidden_dropout: float = 0.1
    """Probability of dropping a feature after every sublayer."""
    pad_token_id: int | None = 1
    """Id of the padding token."""
    is_pre_norm: bool = True
    """Whether norms stand before the sublayers; after them in the 350m size."""
    has_final_norm: bool = True
    """Whether a norm stands after the last block; never where norms stand after the sublayers."""
    has_bias: bool = True
    """Whether the linear maps of the blocks have biases."""
    has_norm_weights: bool = True
    """Whether the norms have weights and biases."""

    def __post_init__(self) -> None:
        """Check the values."""
        DecoderConfig.__post_init__(self)
        if self.word_size < 1:
            raise ConfigError(f"word_size={self.word_size} must be at least 1")
        if self.has_final_norm and not self.is_pre_norm:
            raise ConfigError("has_final_norm=True needs is_pre_norm=True; norms after the sublayers end with one already")


class _Embeddings(DecoderEmbeddings):
    """Token rows, projected to D where they have another width, plus learned positions."""

    def __init__(self, config: OPTConfig) -> None:
        position = LearnedPositionEmbedding(config.max_positions + _POSITION_OFFSET, config.hidden_size, offset=_POSITION_OFFSET)
        super().__init__(config.vocab_size, config.word_size, position=position, padding_idx=config.pad_token_id)
        is_projected = config.word_size != config.hidden_size
        self.projection = Linear(config.word_size, config.hidden_size, bias=False) if is_projected else None

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed.

        Args:
            ids: (tokens,) or (B, T) int64.
            positions: The shape of `ids`, or one that broadcasts to it, int64.

        Returns:
            (tokens, D) or (B, T, D) float.
        """
        assert self.position is not None
        rows = self.token(ids)
        embedded: Tensor = (rows if self.projection is None else self.projection(rows)) + self.position(positions)
        return embedded


class _Exit(nn.Module):
    """What stands after the last block: a norm, then the projection to the width of a token's embedding; each may be absent."""

    def __init__(self, config: OPTConfig) -> None:
        super().__init__()
        self.norm = _norm(config) if config.has_final_norm else None
        is_projected = config.word_size != config.hidden_size
        self.projection = Linear(config.hidden_size, config.word_size, bias=False) if is_projected else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., D) to (..., word size)."""
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden if self.projection is None else self.projection(hidden)


class OPT(DecoderModel):
    """OPT for one of four tasks, equal to transformers' `OPT...` classes.

    Its last hidden state has the width of a token's embedding, as in transformers.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "opt"
    config_class = OPTConfig
    config: OPTConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm", "classification", "question_answering")

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return token and position tables, with a projection between them where the widths differ."""
        assert isinstance(config, OPTConfig)
        return _Embeddings(config)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return the blocks, the last norm and the way back to the width of the embedding."""
        assert isinstance(config, OPTConfig)
        return Decoder((_block(config) for _ in range(config.num_layers)), _Exit(config))

    def build_head(self, config: DecoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task, which reads the width of a token's embedding."""
        assert isinstance(config, OPTConfig)
        if task == "causal_lm" and not config.tie_word_embeddings:
            return Linear(config.word_size, config.vocab_size, bias=False, tensor_split="vocabulary")
        if task == "question_answering":
            return LinearHead(config.word_size, 2)
        return Linear(config.word_size, config.num_labels, bias=False) if task == "classification" else None


def _norm(config: OPTConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, elementwise_affine=config.has_norm_weights)


def _block(config: OPTConfig) -> TransformerBlock:
    attention = Attention(
        config.hidden_size, config.num_heads, bias=config.has_bias, dropout=config.attention_dropout, is_causal=True
    )
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation, bias=config.has_bias)
    where: NormPosition = "pre" if config.is_pre_norm else "post"
    return TransformerBlock(
        SelfAttentionBlock(attention, _norm(config), norm_position=where, dropout=config.hidden_dropout),
        FeedForwardBlock(feed_forward, _norm(config), norm_position=where, dropout=config.hidden_dropout),
    )
