"""What the CPM decoders share: their options, their blocks, and texts of which a part is context.

Tokens of the context see each other on both sides and are not predicted; the others see the context and what stands before them.
Soft prompts, where a family has them, stand before the text and are context.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Attention,
    CrossAttentionBlock,
    FeedForward,
    FeedForwardBlock,
    KeyValueCache,
    LayerNorm,
    Layout,
    Position,
    RMSNorm,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.models.cpm_texts import Marks, predictable
from modelzoo.models.decoder_model import DecoderConfig, DecoderModel
from modelzoo.models.decoding import new_caches
from modelzoo.models.inputs import check_ids, check_labels, check_left_padded, check_shape
from modelzoo.models.model import ModelOutput
from modelzoo.models.targets import require_label_kind

__all__ = ["NO_LIMIT", "CpmConfig", "CpmDecoder", "cpm_block", "cpm_norm"]

NO_LIMIT = 1 << 30
"""Positions of a family whose positions are distances, which have no end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CpmConfig(DecoderConfig):
    """Options that the CPM families have beside those of all decoders."""

    head_size: int
    """H; it need not be hidden_size / num_heads."""
    max_positions: int = NO_LIMIT
    """The longest sequence, in tokens."""
    activation: str = "gelu"
    """Of the feed-forward network, by Hugging Face's name."""
    is_gated: bool = True
    """Whether the feed-forward network is gated."""
    norm_eps: float = 1e-6
    """Added to the mean square, or to the variance, in every norm."""
    norm_bias: bool = False
    """Whether norms subtract the mean and have a bias (LayerNorm) or not (RMSNorm)."""
    attention_bias: bool = False
    """Whether query, key, value and output have a bias."""
    feed_forward_bias: bool = False
    """Whether the maps of the feed-forward network have a bias."""
    length_scale: bool = False
    """Whether the products of every map, of the token table and of the head are divided by the square root of the input's width."""
    scale_attention: bool = True
    """Whether scores are divided by sqrt(head_size)."""

    def __post_init__(self) -> None:
        """Check the values."""
        DecoderConfig.__post_init__(self)
        if self.head_size < 1:
            raise ConfigError(f"head_size={self.head_size} must be at least 1")


def cpm_norm(config: CpmConfig) -> nn.Module:
    """Return the norm of a block."""
    return LayerNorm(config.hidden_size, config.norm_eps) if config.norm_bias else RMSNorm(config.hidden_size, config.norm_eps)


def cpm_block(
    config: CpmConfig, *, is_causal: bool = True, has_context: bool = False, inner_dropout: float = 0.0, sum_scale: float = 1.0
) -> TransformerBlock:
    """Return a pre-norm block.

    Args:
        config: Sizes and options.
        is_causal: Whether a token sees no later one, but for the context.
        has_context: Whether the block also attends to an encoder's output.
        inner_dropout: Probability of dropping an inner feature of the feed-forward network.
        sum_scale: Factor on each sublayer's sum.
    """

    def attention(*, is_causal: bool) -> Attention:
        return Attention(
            config.hidden_size,
            config.num_heads,
            head_size=config.head_size,
            bias=config.attention_bias,
            scale=config.head_size**-0.5 if config.scale_attention else 1.0,
            dropout=config.attention_dropout,
            is_causal=is_causal,
            length_scale=config.length_scale,
        )

    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        is_gated=config.is_gated,
        bias=config.feed_forward_bias,
        dropout=inner_dropout,
        length_scale=config.length_scale,
    )
    dropout = config.hidden_dropout
    own = SelfAttentionBlock(attention(is_causal=is_causal), cpm_norm(config), dropout=dropout, sum_scale=sum_scale)
    cross = CrossAttentionBlock(attention(is_causal=False), cpm_norm(config), dropout=dropout) if has_context else None
    return TransformerBlock(own, FeedForwardBlock(feed_forward, cpm_norm(config), dropout=dropout, sum_scale=sum_scale), cross)


class CpmDecoder(DecoderModel):
    """A decoder with a context.

    Args:
        config: Of the family.
        task: "base" or "causal_lm".
    """

    config: CpmConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm")

    @property
    def logit_scale(self) -> float:
        """Factor on the hidden states before the head."""
        return float(self.config.hidden_size**-0.5) if self.config.length_scale else 1.0

    def _check(self, input_ids: Tensor, labels: Tensor | None, **others: Tensor | None) -> None:
        """Refuse ids out of range, shapes that do not fit, and labels that the task does not take."""
        require_label_kind(self.task, labels, None, None)
        check_ids("input_ids", input_ids, self.config.vocab_size, "vocab_size")
        for name, given in (*others.items(), ("labels", labels)):
            if given is not None:
                check_shape(name, given, input_ids)

    def _prompt_mask(self, input_ids: Tensor, attention_mask: Tensor | None, **marks: Tensor | None) -> Tensor:
        """Return (B, T) bool of a prompt's tokens.

        Raises:
            DataError: An id or a shape is wrong, or a prompt has padding on the right.
        """
        self.require_task("causal_lm")
        self._check(input_ids, None, attention_mask=attention_mask, **marks)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        check_left_padded(mask)
        return mask

    def _new_caches(self, rows: int, max_length: int) -> list[KeyValueCache]:
        return new_caches(self.decoder, rows, max_length, self.embeddings.token.weight)

    def _position(self, layout: Layout, segments: Tensor | None) -> Position | None:
        """Return what the blocks are told about positions; None for what the stack finds itself."""
        return None

    def _embed(self, ids: Tensor, segments: Tensor | None, layout: Layout) -> Tensor:
        """Return the (tokens, D) or (B, T, D) vectors of ids of that shape."""
        embedded: Tensor = self.embeddings(ids, layout.positions)
        return embedded

    def _read(self, ids: Tensor, mask: Tensor | None, marks: Marks, labels: Tensor | None) -> ModelOutput:
        """Run the model on texts.

        Args:
            ids: (B, T) int64.
            mask: (B, T), non-zero where there is a token; None when all are.
            marks: Of all tokens.
            labels: (B, T) int64, or None.
        """
        if labels is None:
            return self._run(ids, mask, marks, None)
        check_labels("labels", labels, tuple(ids.shape), self.config.vocab_size)  # also those that cannot be predicted
        return self._run(ids, mask, marks, predictable(labels, marks))

    def _run(self, ids: Tensor, mask: Tensor | None, marks: Marks, wanted: Tensor | None) -> ModelOutput:
        """Run the model; `wanted` are the labels that can be predicted."""
        present = torch.ones_like(ids) if mask is None else mask
        layout = Layout.packed(present, marks.positions, spans=marks.spans, context=marks.context)
        segments = None if marks.segments is None else layout.pack(marks.segments)
        hidden = self._embed(layout.pack(ids), segments, layout)
        hidden = self.decoder(hidden, layout, position=self._position(layout, segments))
        if self.task == "base":
            return ModelOutput(last_hidden_state=layout.unpack(hidden))
        return self._language_model(hidden, layout, wanted)
