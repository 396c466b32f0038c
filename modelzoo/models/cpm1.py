"""CPM-1 (Zhang et al., 2020) as ModelCenter has it: relative positions, a context, several texts in a row, maps scaled by width.

The checkpoint on the Hugging Face hub has GPT-2's layout instead: its config.json says gpt2, and `GPT2` loads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from modelzoo.layers import Decoder, KeyValueCache, RelativePositionBias
from modelzoo.models.cpm_decoder import CpmConfig, CpmDecoder, cpm_block, cpm_norm
from modelzoo.models.cpm_texts import Marks
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.model import ModelOutput

__all__ = ["CPM1", "CPM1Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CPM1Config(CpmConfig):
    """Sizes and options of a CPM-1; the defaults are cpm1-large's."""

    vocab_size: int = 30968
    """Rows of the token embedding."""
    hidden_size: int = 2560
    """D."""
    num_layers: int = 32
    """Transformer blocks, at least 1."""
    num_heads: int = 32
    """Attention heads of a block."""
    head_size: int = 80
    """H."""
    intermediate_size: int = 6400
    """Width of the feed-forward network."""
    num_buckets: int = 64
    """Buckets of the distances between tokens, half of them for later ones."""
    max_distance: int = 256
    """Distance from which on every pair of tokens is in the last bucket."""
    length_scale: bool = True
    """Whether the products of every map, of the token table and of the head are divided by the square root of the input's width."""
    pad_token_id: int | None = 0
    """Id of the padding token."""
    initializer_range: float = 1.0
    """Standard deviation of fresh weights."""


class CPM1(CpmDecoder):
    """CPM-1, as a backbone or as a language model.

    Args:
        config: Sizes and options.
        task: "base" or "causal_lm".
    """

    family = "cpm1"
    config_class = CPM1Config
    config: CPM1Config

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the token table."""
        assert isinstance(config, CPM1Config)
        scale = config.hidden_size**-0.5 if config.length_scale else 1.0
        return DecoderEmbeddings(config.vocab_size, config.hidden_size, scale=scale, dropout=config.embedding_dropout)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks, the last norm and the bias of distances, which tells both sides apart."""
        assert isinstance(config, CPM1Config)
        bias = RelativePositionBias(config.num_heads, num_buckets=config.num_buckets, max_distance=config.max_distance)
        return Decoder((cpm_block(config) for _ in range(config.num_layers)), cpm_norm(config), bias)

    def forward(  # type: ignore[override]  # texts with a context
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        spans: Tensor | None = None,
        labels: Tensor | None = None,
        caches: Sequence[KeyValueCache] | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. With caches (B, cached + T).
            context: (B, T), non-zero at tokens that see each other on both sides and are not predicted; None for no context.
            spans: (B, T) int: several texts in one row, which do not see each other: a new number begins a new text. None for one
                text a row.
            labels: "causal_lm": (B, T) int64; -100, tokens of the context and first tokens of texts are ignored.
            caches: As of `DecoderModel.forward`; without context and spans.

        Returns:
            The loss where labels were given, and the task's scores. While training a language model with labels, `logits` is None.

        Raises:
            DataError: An id, a label or a shape is out of range, or labels were given that the task does not take.
        """
        if caches is not None:
            return super().forward(input_ids, attention_mask, labels=labels, caches=caches)
        self._check(input_ids, labels, attention_mask=attention_mask, context=context, spans=spans)
        return self._read(input_ids, attention_mask, Marks(context=context, spans=spans), labels)
