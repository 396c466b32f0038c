"""What CPM-Ant and CPM-3 share: soft prompts before the text, and a bias for each pair of segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import Decoder, KeyValueCache, Layout, Position, SegmentPositionBias
from modelzoo.models.cpm_decoder import CpmConfig, CpmDecoder, cpm_block, cpm_norm
from modelzoo.models.cpm_texts import Marks, Prompted, before_labels, predictable, with_soft_prompts
from modelzoo.models.decoder_model import DecoderConfig
from modelzoo.models.decoding import DecodingState
from modelzoo.models.inputs import check_labels
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

    Where nobody says what is context, all tokens are; with labels, those before the first labelled one of each text.

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
        spans: Tensor | None = None,
        segment_ids: Tensor | None = None,
        prompt_types: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. Padding may be on either side.
            context: (B, T), non-zero at tokens that see each other on both sides and are not predicted; None as the class says.
            spans: (B, T) int: several texts in one row, which do not see each other: a new number begins a new text, which gets a
                soft prompt of its own. None for one text a row.
            segment_ids: (B, T) int64 in [0, segment_types); None for the segment of texts.
            prompt_types: (B,) or (B, T) int64 in [0, prompt_types): the soft prompt of each row, or at the first token of each text
                the text's; None for that of texts.
            labels: "causal_lm": (B, T) int64; -100, tokens of the context and first tokens of texts are ignored.

        Returns:
            The loss where labels were given, and the task's scores of the text's tokens. While training a language model with
            labels, `logits` is None.

        Raises:
            DataError: An id, a label or a shape is out of range, or labels were given that the task does not take.
        """
        marks = {"attention_mask": attention_mask, "context": context, "spans": spans, "segment_ids": segment_ids}
        self._check(input_ids, labels, **marks)
        if context is None:
            context = torch.ones_like(input_ids) if labels is None else before_labels(labels, spans)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        text = Marks(context=context, spans=spans, segments=segment_ids)
        ids, mask, marked, places = self._prompted(input_ids, mask, text, prompt_types)
        wanted = None
        if labels is not None:
            check_labels("labels", labels, tuple(input_ids.shape), self.config.vocab_size)  # also those of a context
            wanted = torch.full_like(ids, IGNORED).scatter(1, places, predictable(labels, text).to(ids.dtype))
        output = self._run(ids, mask, marked, wanted)

        def of_text(whole: Tensor | None) -> Tensor | None:
            if whole is None or spans is None:
                return None if whole is None else whole[:, self.config.prompt_length :]
            return whole.gather(1, places.unsqueeze(-1).expand(-1, -1, whole.shape[-1]))

        hidden, logits = of_text(output.last_hidden_state), of_text(output.logits)
        return ModelOutput(loss=output.loss, logits=logits, last_hidden_state=hidden)

    def _prompted(self, ids: Tensor, mask: Tensor, text: Marks, kinds: Tensor | None) -> Prompted:
        """Put soft prompts, whose ids follow the vocabulary's, before each text."""
        segments = torch.full_like(ids, self.text_segment) if text.segments is None else text.segments
        kinds = ids.new_full((len(ids),), self.text_prompt) if kinds is None else kinds
        self._check_kinds(kinds, segments)
        marks = text._replace(segments=segments)
        return with_soft_prompts(ids, mask, marks, kinds, length=self.config.prompt_length, first_id=self.config.vocab_size)

    def _check_kinds(self, kinds: Tensor, segments: Tensor) -> None:
        shape = tuple(segments.shape)
        if tuple(kinds.shape) not in (shape[:1], shape):
            raise DataError(f"prompt_types must have shape {shape[:1]}, one a row, or {shape}, found {tuple(kinds.shape)}")
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
        mask = self._prompt_mask(input_ids, attention_mask)
        ids, mask, marks, _ = self._prompted(input_ids, mask, Marks(context=torch.ones_like(mask)), None)
        segments = marks.segments
        assert segments is not None
        rows, width = ids.shape
        caches = self._new_caches(rows, width + max_new_tokens)
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
