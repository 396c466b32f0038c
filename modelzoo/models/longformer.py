"""Longformer (Beltagy et al., 2020): RoBERTa for long texts, with windows and global tokens."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import Encoder, FeedForward, FeedForwardBlock, LayerNorm, SelfAttentionBlock, TransformerBlock
from modelzoo.models.encoder_parts import EncoderConfig
from modelzoo.models.inputs import check_shape
from modelzoo.models.longformer_attention import LongformerAttention
from modelzoo.models.model import ModelOutput
from modelzoo.models.roberta import Roberta, RobertaConfig
from modelzoo.models.targets import require_label_kind

__all__ = ["Longformer", "LongformerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LongformerConfig(RobertaConfig):
    """Sizes and options of a Longformer; the defaults are transformers' own."""

    vocab_size: int = 30522
    """Rows of the token embedding."""
    max_positions: int = 512
    """Rows of the position table, of which the first pad_token_id + 1 stand for no position."""
    type_vocab_size: int = 2
    """Rows of the segment table."""
    norm_eps: float = 1e-12
    """Added to the variance in every norm."""
    attention_window: int | tuple[int, ...] = 512
    """Width of the window, an even number: a token sees half of it to each side, and itself. One for all layers, or one a layer."""
    sep_token_id: int | None = 2
    """Id of the token that ends a question."""
    classifier_dropout: float | None = dataclasses.field(default=None, init=False)
    """The classifier has hidden_dropout."""

    def __post_init__(self) -> None:
        """Check the values."""
        RobertaConfig.__post_init__(self)
        if isinstance(self.attention_window, tuple) and len(self.attention_window) != self.num_layers:
            raise ConfigError(
                f"attention_window: {len(self.attention_window)} windows were given for num_layers={self.num_layers}; "
                "give one a layer"
            )
        strange = [width for width in self.windows if width < 2 or width % 2]
        if strange:
            raise ConfigError(f"attention_window={strange[0]} must be even and at least 2")
        if self.sep_token_id is not None and not 0 <= self.sep_token_id < self.vocab_size:
            raise ConfigError(f"sep_token_id={self.sep_token_id} is not below vocab_size={self.vocab_size}")

    @property
    def windows(self) -> tuple[int, ...]:
        """The width of each layer's window."""
        width = self.attention_window
        return width if isinstance(width, tuple) else (width,) * self.num_layers


class Longformer(Roberta):
    """Longformer for one of six tasks.

    Equal to transformers' `Longformer...` classes, in logits and gradients, at every real token. Time and memory grow with tokens
    times window. The longest sequence has max_positions - pad_token_id - 1 tokens, and need not fill windows.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "longformer"
    config_class = LongformerConfig
    config: LongformerConfig

    def build_encoder(self, config: EncoderConfig) -> Encoder:
        """Return post-norm blocks, each with its window."""
        assert isinstance(config, LongformerConfig)
        return Encoder(_block(config, width) for width in config.windows)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: As of `EncoderModel.forward`, and so are the others but the last.
            attention_mask: (B, T).
            token_type_ids: (B, T) int64.
            position_ids: (B, T) int64.
            labels: (B,) or (B, T) int64.
            start_positions: (B,) int64.
            end_positions: (B,) int64.
            global_attention_mask: (B, T), non-zero at tokens that see all and that all see. None for the task's own: the first
                token for "classification", the tokens before the first sep_token_id for "question_answering", all after the
                token behind it for "multiple_choice", none for the rest.

        Returns:
            As `EncoderModel.forward`.

        Raises:
            DataError: As `EncoderModel.forward`, or a question has no end.
        """
        if self.task == "multiple_choice" and input_ids.dim() == 3:
            given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "global_attention_mask": global_attention_mask}
            return self._choose(input_ids, attention_mask, labels, given)
        require_label_kind(self.task, labels, start_positions, end_positions)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        layout = self._layout(input_ids, mask, token_type_ids, position_ids)
        if global_attention_mask is None:
            global_attention_mask = self._global_tokens(input_ids, mask)
        check_shape("global_attention_mask", global_attention_mask, input_ids)
        layout = dataclasses.replace(layout, is_global=layout.pack(global_attention_mask.bool()))
        segments = None if token_type_ids is None else layout.pack(token_type_ids)
        hidden = self.embeddings(layout.pack(input_ids), segments, layout.positions)
        return self._run(hidden, layout, attention_mask, labels, start_positions, end_positions)

    def _global_tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the (B, T) bool of the task's own global tokens."""
        real = mask.bool()
        if self.task == "classification":
            return real & (real.cumsum(1) == 1)
        if self.task not in ("question_answering", "multiple_choice"):
            return torch.zeros_like(real)
        if self.config.sep_token_id is None:
            raise DataError("sep_token_id=None: the end of a question is not known; give global_attention_mask")
        is_end = real & (ids == self.config.sep_token_id)
        endless = ~is_end.any(1) & real.any(1)
        if endless.any():
            raise DataError(
                f"input_ids: row {int(endless.nonzero()[0])} has no sep_token_id={self.config.sep_token_id} to end its question; "
                "put it between question and text, or give global_attention_mask"
            )
        if self.task == "question_answering":
            return real & (is_end.cumsum(1) == 0)
        first = is_end.long().argmax(1, keepdim=True)
        return real & (torch.arange(ids.shape[1], device=ids.device) > first + 1)


def _block(config: LongformerConfig, width: int) -> TransformerBlock:
    attention = LongformerAttention(config.hidden_size, config.num_heads, window=width // 2 + 1, dropout=config.attention_dropout)
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
    norms = [LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
    return TransformerBlock(
        SelfAttentionBlock(attention, norms[0], norm_position="post", dropout=config.hidden_dropout),
        FeedForwardBlock(feed_forward, norms[1], norm_position="post", dropout=config.hidden_dropout),
    )
