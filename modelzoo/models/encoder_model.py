"""What BERT and its relatives share: embeddings with a norm, a post-norm encoder, and heads for five tasks.

A family's file says how it counts positions and which heads it has; the way through the model is written once, here.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Attention,
    Dropout,
    Embedding,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    Layout,
    LearnedPositionEmbedding,
    SelfAttentionBlock,
    TransformerBlock,
    activation,
)
from modelzoo.models.heads import LinearHead, MaskedLmHead, Pooler
from modelzoo.models.inputs import check_ids, check_length, check_shape
from modelzoo.models.losses import IGNORED, cross_entropy, span_loss
from modelzoo.models.model import Model, ModelConfig, ModelOutput
from modelzoo.models.targets import require_label_kind, span_targets, targets

__all__ = ["EncoderConfig", "EncoderModel", "TextEmbeddings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig(ModelConfig):
    """Sizes and options of a BERT-like encoder; the defaults are BERT-base's."""

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
    """Rows of the position table."""
    type_vocab_size: int = 2
    """Rows of the segment table."""
    norm_eps: float = 1e-12
    """Added to the variance in every norm."""

    def __post_init__(self) -> None:
        """Check the values."""
        # Not super(): a dataclass with slots is a new class, which the zero-argument form does not see.
        ModelConfig.__post_init__(self)
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "type_vocab_size"):
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


class TextEmbeddings(nn.Module):
    """norm(token + segment + position), then dropout.

    Args:
        config: Sizes.
        position_offset: Row of the position table that position 0 uses.
        position_padding_idx: Row of the position table that gets no gradient; None for none.
    """

    def __init__(self, config: EncoderConfig, *, position_offset: int, position_padding_idx: int | None) -> None:
        super().__init__()
        size = config.hidden_size
        self.token = Embedding(config.vocab_size, size, config.pad_token_id)
        self.position = LearnedPositionEmbedding(config.max_positions, size, position_padding_idx, offset=position_offset)
        self.segment = Embedding(config.type_vocab_size, size)
        self.norm = LayerNorm(size, config.norm_eps)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Embed.

        Args:
            ids: (tokens,) or (B, T) int64.
            segments: The shape of `ids`, int64; None for all zeros.
            positions: The shape of `ids`, or one that broadcasts to it, int64.

        Returns:
            (tokens, D) or (B, T, D) float.
        """
        segment = self.segment.weight[0] if segments is None else self.segment(segments)
        embedded: Tensor = self.dropout(self.norm(self.token(ids) + segment + self.position(positions)))
        return embedded


def _encoder(config: EncoderConfig) -> Encoder:
    def block() -> TransformerBlock:
        attention = Attention(config.hidden_size, config.num_heads, dropout=config.attention_dropout)
        feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
        norms = [LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
        return TransformerBlock(
            SelfAttentionBlock(attention, norms[0], norm_position="post", dropout=config.hidden_dropout),
            FeedForwardBlock(feed_forward, norms[1], norm_position="post", dropout=config.hidden_dropout),
        )

    return Encoder(block() for _ in range(config.num_layers))


class EncoderModel(Model):
    """A bidirectional encoder with one of five heads.

    Padding is dropped at the door: blocks see real tokens alone. Hidden states at padding are zeros. The token that a classifier
    reads is the first real one of each row, whichever side the padding is on.

    Args:
        config: Of the family.
        task: "base", "masked_lm", "classification", "token_classification" or "question_answering".
    """

    config: EncoderConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "masked_lm", "classification", "token_classification", "question_answering")
    pooled_tasks: ClassVar[tuple[Task, ...]]
    """The tasks whose model has a pooler."""

    def __init__(self, config: EncoderConfig, task: Task = "base") -> None:
        super().__init__(config, task)
        self.embeddings = self.build_embeddings(config)
        self.encoder = _encoder(config)
        self.pooler = Pooler(config.hidden_size) if task in self.pooled_tasks else None
        self.head = self.build_head(config, task)

    def build_embeddings(self, config: EncoderConfig) -> TextEmbeddings:
        """Return the embeddings."""
        raise NotImplementedError

    def positions(self, ids: Tensor) -> Tensor | None:
        """Return (B, T) int64 positions, or None for a token's column.

        Args:
            ids: (B, T) int64.
        """
        raise NotImplementedError

    def build_head(self, config: EncoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; None for "base"."""
        if task == "masked_lm":
            return MaskedLmHead(
                config.hidden_size,
                config.vocab_size,
                activation_name=config.activation,
                norm_eps=config.norm_eps,
                is_tied=config.tie_word_embeddings,
            )
        if task == "question_answering":
            return LinearHead(config.hidden_size, 2)
        return None if task == "base" else LinearHead(config.hidden_size, config.num_labels, dropout=config.head_dropout)

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self.embeddings.position.max_positions

    def shard_units(self) -> list[nn.Module]:
        """Return the encoder's blocks in forward order."""
        return list(self.encoder.layers)

    def tied_parameters(self) -> list[tuple[str, str]]:
        """Return the token table, where a masked-LM head uses it too."""
        is_tied = self.task == "masked_lm" and self.config.tie_word_embeddings
        return [("embeddings.token.weight", "head")] if is_tied else []

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            token_type_ids: (B, T) int64 in [0, type_vocab_size); None for zeros.
            position_ids: (B, T) int64 rows of the position table, as Hugging Face counts them; None for the family's own count.
            labels: "classification": (B,) int64; "token_classification" and "masked_lm": (B, T) int64; -100 is ignored, and so is
                what stands at padding.
            start_positions: "question_answering": (B,) int64 column of the answer's first token.
            end_positions: "question_answering": (B,) int64 column of its last token.

        Returns:
            The loss where labels were given, and the task's scores. While training a masked LM with labels, the head runs on the
            labelled tokens alone, and `logits` is None.

        Raises:
            DataError: An id, a type, a label or a length is out of range, or labels were given that the task does not take.
        """
        require_label_kind(self.task, labels, start_positions, end_positions)
        layout = self._layout(input_ids, attention_mask, token_type_ids, position_ids)
        segments = None if token_type_ids is None else layout.pack(token_type_ids)
        hidden = self.embeddings(layout.pack(input_ids), segments, layout.positions)
        if self.task == "classification":
            return self._classify(hidden, layout, labels)
        hidden = self.encoder(hidden, layout)
        if self.task == "base":
            padded = layout.unpack(hidden)
            first = layout.first_rows()
            pooled = None if self.pooler is None else self.pooler(first.spread(first.take(hidden)))
            return ModelOutput(last_hidden_state=padded, pooler_output=pooled)
        if self.task == "masked_lm":
            return self._score_tokens(hidden, layout, labels)
        assert self.head is not None
        scores = layout.unpack(self.head(hidden))
        if self.task == "question_answering":
            return self._answer(scores, layout, attention_mask, start_positions, end_positions)
        return self._scored(scores, labels, layout)

    def _layout(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> Layout:
        """Check the inputs and say where the real tokens are."""
        check_ids("input_ids", input_ids, self.config.vocab_size, "vocab_size")
        if token_type_ids is not None:
            check_ids("token_type_ids", token_type_ids, self.config.type_vocab_size, "type_vocab_size")
            check_shape("token_type_ids", token_type_ids, input_ids)
        table = self.embeddings.position
        if position_ids is not None:
            check_ids("position_ids", position_ids, table.num_embeddings, "max_positions")
            check_shape("position_ids", position_ids, input_ids, may_be_one_row=True)
            positions: Tensor | None = position_ids - table.offset
        else:
            positions = self.positions(input_ids)
        if attention_mask is None:
            layout = Layout.dense(*input_ids.shape, positions=positions, device=input_ids.device)
        else:
            check_shape("attention_mask", attention_mask, input_ids)
            layout = Layout.packed(attention_mask, positions)
        longest = int(layout.positions.max()) + 1 if layout.positions.numel() else 0
        note = f"{table.num_embeddings} positions" + (f", padding_idx {table.padding_idx}" if table.offset else "")
        check_length(longest, self.max_length, note)
        return layout

    def _classify(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> ModelOutput:
        first = layout.first_rows()
        pooled = first.spread(self.encoder(hidden, layout, selection=first))
        if self.pooler is not None:
            pooled = self.pooler(pooled)
        assert self.head is not None
        return self._scored(self.head(pooled), labels, layout)

    def _scored(self, logits: Tensor, labels: Tensor | None, layout: Layout) -> ModelOutput:
        if labels is None:
            return ModelOutput(logits=logits)
        wanted = targets(labels, layout, tuple(logits.shape[:-1]), logits.shape[-1])
        return ModelOutput(loss=cross_entropy(logits, wanted), logits=logits)

    def _score_tokens(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> ModelOutput:
        assert self.head is not None
        if labels is None or not self.training:
            return self._scored(layout.unpack(self.head(hidden, self.embeddings.token)), labels, layout)
        wanted = layout.pack(targets(labels, layout, layout.batch_shape, self.config.vocab_size)).flatten()
        supervised = wanted != IGNORED
        scores = self.head(hidden.flatten(0, -2)[supervised], self.embeddings.token)
        return ModelOutput(loss=cross_entropy(scores, wanted[supervised]))

    def _answer(
        self, scores: Tensor, layout: Layout, mask: Tensor | None, starts: Tensor | None, ends: Tensor | None
    ) -> ModelOutput:
        if mask is not None:
            scores = scores.masked_fill(~mask.bool().unsqueeze(-1), torch.finfo(scores.dtype).min)
        start_logits, end_logits = scores.unbind(-1)
        if starts is None or ends is None:
            return ModelOutput(start_logits=start_logits, end_logits=end_logits)
        starts, ends = span_targets("start_positions", starts, layout), span_targets("end_positions", ends, layout)
        return ModelOutput(loss=span_loss(start_logits, end_logits, starts, ends), start_logits=start_logits, end_logits=end_logits)
