"""GPT-J (Wang and Komatsuzaki, 2021): attention and feed-forward side by side, rotary positions on part of each head."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import Attention, Decoder, FeedForward, LayerNorm, Linear, ParallelBlock, RotaryEmbedding
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings, DecoderModel

__all__ = ["GPTJ", "GPTJConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTJConfig(DecoderConfig):
    """Sizes and options of a GPT-J; the defaults are gpt-j-6B's."""

    vocab_size: int = 50400
    """Rows of the token embedding."""
    hidden_size: int = 4096
    """D."""
    num_layers: int = 28
    """Transformer blocks, at least 1."""
    num_heads: int = 16
    """Attention heads of a block."""
    rotary_size: int = 64
    """Leading features of a head that are turned by its position, an even number."""
    intermediate_size: int = 16384
    """Width of the feed-forward network."""
    activation: str = "gelu_new"
    """Of the feed-forward network, by Hugging Face's name."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    max_positions: int = 2048
    """The longest sequence, in tokens."""
    tie_word_embeddings: bool = False
    """Always false: the language model's head has a bias."""

    def __post_init__(self) -> None:
        """Check the values."""
        DecoderConfig.__post_init__(self)
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}")
        head_size = self.hidden_size // self.num_heads
        if self.rotary_size % 2 or not 0 < self.rotary_size <= head_size:
            raise ConfigError(f"rotary_size={self.rotary_size} must be even and at most {head_size}, the size of a head")
        if self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings=True is not built for GPT-J, whose head has a bias; use False")


class GPTJ(DecoderModel):
    """GPT-J for one of four tasks, equal to transformers' `GPTJ...` classes.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "gptj"
    config_class = GPTJConfig
    config: GPTJConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm", "classification", "question_answering")

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the token table."""
        return DecoderEmbeddings(config.vocab_size, config.hidden_size, dropout=config.embedding_dropout)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return the blocks, the last norm and the rotary positions."""
        assert isinstance(config, GPTJConfig)
        rotary = RotaryEmbedding(config.hidden_size // config.num_heads, rotary_size=config.rotary_size, is_interleaved=True)
        norm = LayerNorm(config.hidden_size, config.norm_eps)
        return Decoder((_block(config) for _ in range(config.num_layers)), norm, rotary)

    def build_head(self, config: DecoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; the language model's has a bias."""
        if task == "causal_lm":
            return Linear(config.hidden_size, config.vocab_size, tensor_split="vocabulary")
        return super().build_head(config, task)


def _block(config: GPTJConfig) -> ParallelBlock:
    attention = Attention(config.hidden_size, config.num_heads, bias=False, dropout=config.attention_dropout, is_causal=True)
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
    return ParallelBlock(attention, feed_forward, LayerNorm(config.hidden_size, config.norm_eps), dropout=config.hidden_dropout)
