"""CPM-3 (OpenBMB, 2022): soft prompts with a table of their own, and a bias for each pair of segments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.layers import Embedding, Layout
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.prompted_decoder import PromptedConfig, PromptedDecoder

__all__ = ["CPM3", "CPM3Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CPM3Config(PromptedConfig):
    """Sizes and options of a CPM-3; the defaults are ModelCenter's."""

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
    length_scale: bool = True
    """Whether the products of every map, of the tables and of the head are divided by the square root of the input's width."""
    prompt_length: int = 64
    """Tokens of a soft prompt."""
    segment_types: int = 34
    """Kinds of segments."""
    pad_token_id: int | None = 0
    """Id of the padding token."""
    initializer_range: float = 1.0
    """Standard deviation of fresh weights."""


class _Embeddings(DecoderEmbeddings):
    """A table of tokens and one of soft prompts, whose ids follow the vocabulary's."""

    def __init__(self, config: CPM3Config) -> None:
        scale = config.hidden_size**-0.5 if config.length_scale else 1.0
        super().__init__(config.vocab_size, config.hidden_size, scale=scale, dropout=config.embedding_dropout)
        self.prompt = Embedding(config.prompt_types * config.prompt_length, config.hidden_size, scale=scale, tensor_split=None)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed (tokens,) or (B, T) ids; the bias of the stack knows positions."""
        last = self.token.num_embeddings - 1
        tokens, prompts = self.token(ids.clamp(max=last)), self.prompt((ids - last - 1).clamp(min=0))
        embedded: Tensor = self.dropout(torch.where((ids > last).unsqueeze(-1), prompts, tokens))
        return embedded


class CPM3(PromptedDecoder):
    """CPM-3, as a backbone or as a language model.

    ModelCenter takes segments and soft prompts from its caller, always. Where nobody says, a text is in segment 2 and follows soft
    prompt 0.

    Args:
        config: Sizes and options.
        task: "base" or "causal_lm".
    """

    family = "cpm3"
    config_class = CPM3Config
    config: CPM3Config
    text_segment = 2
    text_prompt = 0

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the tables of tokens and soft prompts."""
        assert isinstance(config, CPM3Config)
        return _Embeddings(config)

    def _embed(self, ids: Tensor, segments: Tensor | None, layout: Layout) -> Tensor:
        embedded: Tensor = self.embeddings(ids, layout.positions)
        return embedded
