"""GPT-2 (Radford et al., 2019): pre-norm blocks, learned positions, a head tied to the token table."""

from dataclasses import dataclass

from modelzoo.layers import (
    Attention,
    Decoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    LearnedPositionEmbedding,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings, DecoderModel

__all__ = ["GPT2", "GPT2Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Config(DecoderConfig):
    """Sizes and options of a GPT-2; the defaults are gpt2's."""

    vocab_size: int = 50257
    """Rows of the token embedding."""
    hidden_size: int = 768
    """D."""
    num_layers: int = 12
    """Transformer blocks, at least 1."""
    num_heads: int = 12
    """Attention heads of a block."""
    intermediate_size: int = 3072
    """Width of the feed-forward network."""
    activation: str = "gelu_new"
    """Of the feed-forward network, by Hugging Face's name."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    max_positions: int = 1024
    """Rows of the position table."""
    hidden_dropout: float = 0.1
    """Probability of dropping a feature after every sublayer."""
    embedding_dropout: float = 0.1
    """Probability of dropping a feature after the embeddings."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    classifier_dropout: float = 0.1
    """Probability of dropping a feature before the token classifier."""
    scale_attention: bool = True
    """Whether scores are divided by sqrt(head size)."""
    scale_attention_by_layer: bool = False
    """Whether scores are also divided by the layer's number, counted from 1."""


class GPT2(DecoderModel):
    """GPT-2 for one of five tasks.

    Equal to transformers' `GPT2Model`, `GPT2LMHeadModel`, `GPT2ForSequenceClassification` and `GPT2ForTokenClassification`; with
    padding on the left, equal to those given the positions that `generate` would give them.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "gpt2"
    config_class = GPT2Config
    config: GPT2Config

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return token and position tables."""
        position = LearnedPositionEmbedding(config.max_positions, config.hidden_size)
        return DecoderEmbeddings(config.vocab_size, config.hidden_size, position=position, dropout=config.embedding_dropout)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks and the last norm."""
        assert isinstance(config, GPT2Config)
        return Decoder(
            (_block(config, layer) for layer in range(config.num_layers)), LayerNorm(config.hidden_size, config.norm_eps)
        )


def _block(config: GPT2Config, layer: int) -> TransformerBlock:
    scale = (config.hidden_size // config.num_heads) ** -0.5 if config.scale_attention else 1.0
    attention = Attention(
        config.hidden_size,
        config.num_heads,
        scale=scale / (layer + 1) if config.scale_attention_by_layer else scale,
        dropout=config.attention_dropout,
        is_causal=True,
    )
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
    norms = [LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
    return TransformerBlock(
        SelfAttentionBlock(attention, norms[0], dropout=config.hidden_dropout),
        FeedForwardBlock(feed_forward, norms[1], dropout=config.hidden_dropout),
    )
