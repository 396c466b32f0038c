"""What CPM-Ant and CPM-3 share: soft prompts before the text, and a bias for each pair of segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import Decoder, KeyValueCache, Layout, Position, SegmentPositionBias
from modelzoo.models.cpm_decoder import CpmConfig, CpmDecoder, Marks, cpm_block, cpm_norm
from modelzoo.models.decoder_model import DecoderConfig
from modelzoo.models.decoding import DecodingState, new_caches
from modelzoo.models.inputs import check_left_padded
from modelzoo.models.losses import IGNORED
from modelzoo.models.model import ModelOutput

__all__ = ["PromptedConfig", "PromptedDecoder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptedConfig(CpmConfig):
    """Options of the families with soft prompts and segments."""

    num_buckets: int = 512
    """Buckets of the distances within a segment."""
    max_distance: int = 2048
    """Distance from which on every pair of tokens of a segment is in the last bucket."""
    prompt_types: int = 32
    """Kinds of soft prompts."""
    prompt_length: int = 32
    """Tokens of a soft prompt."""
    segment_types: int = 32
    """Kinds of segments."""

    def __post_init__(self) -> None:
        """Check the values."""
        CpmConfig.__post_init__(self)
        for name in ("prompt_types", "prompt_length", "segment_types"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


class PromptedDecoder(CpmDecoder):
    """A decoder that reads a soft prompt first, and tells segments apart.

    Where nobody says what is context, all tokens are; with labels, those before the first labelled one of each row.

    Args:
        config: Of the family.
        task: "base" or "causal_lm".
    """

    config: PromptedConfig
    text_segment: ClassVar[int]
    """Segment of a text where nobody says; soft prompts are in segment 0."""
    text_prompt: ClassVar[int]
    """Kind of the soft prompt where nobody says."""

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks, the last norm and the bias of distances and segments."""
        assert isinstance(config, PromptedConfig)
        for name, needed in (("segment_types", self.text_segment), ("prompt_types", self.text_prompt)):
            if getattr(config, name) <= needed:
                raise ConfigError(f"{name}={getattr(config, name)} must be at least {needed + 1}: a text has number {needed}")
        return Decoder(
            (cpm_block(config, inner_dropout=self._inner_dropout(config)) for _ in range(config.num_layers)),
            cpm_norm(config),
            SegmentPositionBias(
                config.num_heads,
                num_segments=config.segment_types,
                num_buckets=config.num_buckets,
                max_distance=config.max_distance,
            ),
        )

    def _inner_dropout(self, config: PromptedConfig) -> float:
        """Return the probability of dropping an inner feature of a feed-forward network."""
        return 0.0

    def _embed(self, ids: Tensor, segments: Tensor | None, layout: Layout) -> Tensor:
        raise NotImplementedError

    def _position(self, layout: Layout, segments: Tensor | None) -> Position:
        assert segments is not None
        position: Position = self._bias(layout, segments)
        return position

    @property
    def _bias(self) -> SegmentPositionBias:
        assert isinstance(self.decoder.position, SegmentPositionBias)
        return self.decoder.position

    def forward(  # type: ignore[override]  # texts with a context, and no caches from outside
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        segment_ids: Tensor | None = None,
        prompt_types: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. Padding may be on either side.
            context: (B, T), non-zero at tokens that see each other on both sides and are not predicted; None as the class says.
            segment_ids: (B, T) int64 in [0, segment_types); None for the segment of texts.
            prompt_types: (B,) int64 in [0, prompt_types): the soft prompt of each row; None for that of texts.
            labels: "causal_lm": (B, T) int64; -100 and tokens of the context are ignored. `labels[:, 1:]` are predicted.

        Returns:
            The loss where labels were given, and the task's scores of the text's tokens. While training a language model with
            labels, `logits` is None.

        Raises:
            DataError: An id, a label or a shape is out of range, or labels were given that the task does not take.
        """
        self._check(input_ids, labels, attention_mask=attention_mask, context=context, segment_ids=segment_ids)
        if context is None:
            context = torch.ones_like(input_ids) if labels is None else (labels != IGNORED).cumsum(1) == 0
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        ids, mask, segments = self._prompted(input_ids, mask, segment_ids, prompt_types)
        context = torch.cat([context.new_ones(len(context), self.config.prompt_length), context], dim=1)
        marks = Marks(context=context, segments=segments)
        return self._read(ids, mask, marks, labels, num_prompts=self.config.prompt_length)

    def _prompted(
        self, input_ids: Tensor, mask: Tensor, segment_ids: Tensor | None, prompt_types: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Put soft prompts, whose ids follow the vocabulary's, before ids, mask and segments."""
        rows, length = len(input_ids), self.config.prompt_length
        kinds = input_ids.new_full((rows,), self.text_prompt) if prompt_types is None else prompt_types
        segments = torch.full_like(input_ids, self.text_segment) if segment_ids is None else segment_ids
        self._check_kinds(kinds, segments, rows)
        prompts = self.config.vocab_size + kinds.unsqueeze(1) * length + torch.arange(length, device=input_ids.device)
        return (
            torch.cat([prompts, input_ids], dim=1),
            torch.cat([mask.new_ones(rows, length), mask], dim=1),
            torch.cat([segments.new_zeros(rows, length), segments], dim=1),
        )

    def _check_kinds(self, kinds: Tensor, segments: Tensor, rows: int) -> None:
        if kinds.shape != (rows,):
            raise DataError(f"prompt_types must have shape {(rows,)}, one a row, found {tuple(kinds.shape)}")
        limits = (("prompt_types", kinds, self.config.prompt_types), ("segment_ids", segments, self.config.segment_types))
        for name, given, limit in limits:
            low, high = torch.stack(torch.aminmax(given)).tolist()
            if low < 0 or high >= limit:
                raise DataError(f"{name}: {low if low < 0 else high} is not in 0 to {limit - 1}")

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> tuple[Tensor, DecodingState]:
        """Read a prompt as context and make room for what follows.

        Args:
            input_ids: (B, T) int64; the prompts end in the last column, so padding is on the left.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            max_new_tokens: Tokens that will follow at most.

        Returns:
            (B, V) float logits of the next token, and what `decode` goes on from.

        Raises:
            DataError: A prompt has padding on the right.
        """
        self.require_task("causal_lm")
        self._check(input_ids, None, attention_mask=attention_mask)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        check_left_padded(mask)
        ids, mask, segments = self._prompted(input_ids, mask, None, None)
        rows, width = ids.shape
        caches = new_caches(self.decoder, rows, width + max_new_tokens, self.embeddings.token.weight)
        layout = Layout.dense(rows, width, mask=mask, context=torch.ones_like(mask), device=ids.device)
        return self._next(ids, segments, layout, self._bias(layout, segments), caches), DecodingState(mask, caches)

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append one token to every sequence and score the next.

        Args:
            ids: (B,) int64.
            state: Of `prefill`; it is changed in place.

        Returns:
            (B, V) float logits.
        """
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(ids), 1)], dim=1)
        rows, width = state.mask.shape
        layout = Layout.dense(rows, 1, start=width - 1, mask=state.mask, device=ids.device)
        segments = ids.new_full((rows, width), self.text_segment)
        segments[:, : self.config.prompt_length] = 0
        bias = self._bias(layout, segments[:, -1:], key_segments=segments)
        return self._next(ids.unsqueeze(1), segments[:, -1:], layout, bias, state.caches)

    def _next(self, ids: Tensor, segments: Tensor, layout: Layout, position: Position, caches: Sequence[KeyValueCache]) -> Tensor:
        hidden = self.decoder(self._embed(ids, segments, layout), layout, caches=caches, position=position)
        return self._logits(hidden[:, -1])
