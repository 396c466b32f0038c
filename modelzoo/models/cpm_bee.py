"""CPM-Bee (OpenBMB, 2023): texts as trees of segments, whose pairs have buckets of bias, and numbered special tokens.

Equal special tokens (<ans>, <mask>, unknown words) are told apart by a number: it turns the token's embedding, as rotary positions
turn a head, and the words that a text brings along extend the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.layers import Decoder, Layout, RotaryEmbedding
from modelzoo.layers.rotary import apply_rotary
from modelzoo.models.cpm_bee_config import CpmBeeConfig
from modelzoo.models.cpm_bee_segments import RelationBias, SegmentMarks, check_segments
from modelzoo.models.cpm_decoder import CpmDecoder, cpm_block, cpm_norm
from modelzoo.models.cpm_texts import Marks, before_labels, predictable
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.decoding import DecodingState
from modelzoo.models.inputs import check_labels
from modelzoo.models.losses import IGNORED, cross_entropy
from modelzoo.models.model import ModelOutput

__all__ = ["CpmBee", "CpmBeeConfig", "SegmentMarks"]

_SUM_SCALE = 1 / 1.05


@dataclass(slots=True)
class _TreeState(DecodingState):
    """What belongs to the trees that are continued; beams stay within their tree, so it is the same for each of them."""

    segments: SegmentMarks | None = None
    """Of all columns so far; what is written is in the last one's segment."""
    samples: Tensor | None = None
    """(B, S) int64 of all columns so far."""
    extra: tuple[Tensor, Tensor] | None = None
    """Tokens that extend the vocabulary."""
    writable: Tensor | None = None
    """(B, V + E) bool."""


class _Embeddings(DecoderEmbeddings):
    """Token rows, turned by the numbers of equal special tokens."""

    def __init__(self, config: CpmBeeConfig) -> None:
        scale = config.hidden_size**-0.5 if config.length_scale else 1.0
        super().__init__(config.vocab_size, config.hidden_size, scale=scale, dropout=config.embedding_dropout)
        self.distance_scale = config.distance_scale
        self.turn = RotaryEmbedding(config.hidden_size)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed ids; `positions` are the numbers of the tokens, of the same shape."""
        table = self.turn.table(positions * self.distance_scale)
        embedded: Tensor = self.dropout(apply_rotary(self.token(ids).unsqueeze(-2), table).squeeze(-2))
        return embedded


class CpmBee(CpmDecoder):
    """CPM-Bee, as a backbone or as a language model.

    Where nobody says what is context, all tokens are; with labels, those before the first labelled one of each text.

    Args:
        config: Sizes and options.
        task: "base" or "causal_lm".
    """

    family = "cpmbee"
    config_class = CpmBeeConfig
    config: CpmBeeConfig

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the token table."""
        assert isinstance(config, CpmBeeConfig)
        return _Embeddings(config)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks whose sums are scaled, the last norm, and the bias of distances and relations."""
        assert isinstance(config, CpmBeeConfig)
        blocks = (cpm_block(config, inner_dropout=config.hidden_dropout, sum_scale=_SUM_SCALE) for _ in range(config.num_layers))
        bias = RelationBias(
            config.num_heads,
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            num_relations=config.num_segment_buckets,
        )
        return Decoder(blocks, cpm_norm(config), bias)

    @property
    def _bias(self) -> RelationBias:
        assert isinstance(self.decoder.position, RelationBias)
        return self.decoder.position

    def forward(  # type: ignore[override]  # texts with a context, and no caches from outside
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        numbers: Tensor | None = None,
        segments: SegmentMarks | None = None,
        samples: Tensor | None = None,
        spans: Tensor | None = None,
        extra: tuple[Tensor, Tensor] | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. Padding may be on either side.
            context: (B, T), non-zero at tokens that see each other on both sides and are not predicted; None as the class says.
            numbers: (B, T) int64 from 0: tell equal special tokens apart; None for 0.
            segments: Segments and their relations; None for one segment a row.
            samples: (B, T) int64: examples within a text; tokens of sample 0 see all others, the rest their own. None for 0.
            spans: (B, T) int: several texts in one row; None for one text a row.
            extra: Ids and numbers, each (E,) int64, of the tokens that extend the vocabulary; None for none.
            labels: "causal_lm": (B, T) int64 in [0, vocab_size + E); -100 and tokens of the context are ignored.

        Returns:
            The loss where labels were given, and (B, T, vocab_size + E) scores.

        Raises:
            DataError: An id, a label or a shape is out of range, or labels were given that the task does not take.
        """
        self._check(
            input_ids, labels, attention_mask=attention_mask, context=context, numbers=numbers, samples=samples, spans=spans
        )
        if context is None:
            context = torch.ones_like(input_ids) if labels is None else before_labels(labels, spans)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if segments is not None:
            segments = SegmentMarks(*segments)
            check_segments(segments, mask, self.config.num_segment_buckets)
        layout = Layout.packed(mask, spans=spans, context=context)
        turns = torch.zeros_like(input_ids) if numbers is None else numbers
        hidden = self.embeddings(layout.pack(input_ids), layout.pack(turns))
        hidden = layout.unpack(self.decoder(hidden, layout, position=self._bias.of_sequences(layout, segments, samples)))
        if self.task == "base":
            return ModelOutput(last_hidden_state=hidden)
        scores = self._scores(hidden, extra)
        if labels is None:
            return ModelOutput(logits=scores)
        check_labels("labels", labels, tuple(input_ids.shape), scores.shape[-1])
        wanted = predictable(labels, Marks(context=context, spans=spans)).masked_fill(mask == 0, IGNORED)
        following = torch.cat([wanted[:, 1:], torch.full_like(wanted[:, :1], IGNORED)], dim=1)
        return ModelOutput(loss=cross_entropy(scores, following), logits=scores)

    def _scores(self, hidden: Tensor, extra: tuple[Tensor, Tensor] | None) -> Tensor:
        scores = self._logits(hidden)
        if extra is None:
            return scores
        return torch.cat([scores, hidden @ self.embeddings(*extra).T], dim=-1)

    def prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        *,
        context: Tensor | None = None,
        numbers: Tensor | None = None,
        segments: SegmentMarks | None = None,
        samples: Tensor | None = None,
        extra: tuple[Tensor, Tensor] | None = None,
        writable: Tensor | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """Read a prompt and make room for what follows in the segment of its last token.

        Args:
            input_ids: (B, T) int64; the prompts end in the last column, so padding is on the left.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            max_new_tokens: Tokens that will follow at most.
            context: As in `forward`; None for all.
            numbers: As in `forward`.
            segments: As in `forward`.
            samples: As in `forward`; with segments.
            extra: As in `forward`; ids from the vocabulary's size on mean these when they are written.
            writable: (B, V + E) bool of what each row may write; None for everything.

        Returns:
            (B, V + E) float logits of the next token, and what `decode` goes on from.

        Raises:
            DataError: A prompt has padding on the right, or a mark does not fit.
        """
        mask = self._prompt_mask(input_ids, attention_mask, context=context, numbers=numbers, samples=samples)
        if segments is not None:
            check_segments(segments, mask, self.config.num_segment_buckets)
        rows, width = input_ids.shape
        caches = self._new_caches(rows, width + max_new_tokens)
        state = _TreeState(mask, caches, segments=segments, samples=samples, extra=extra, writable=writable)
        seen = torch.ones_like(mask) if context is None else context
        layout = Layout.dense(rows, width, mask=mask, context=seen, device=input_ids.device)
        return self._next(input_ids, torch.zeros_like(input_ids) if numbers is None else numbers, layout, state), state

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append one token to every sequence and score the next.

        Args:
            ids: (B,) int64; from the vocabulary's size on the tokens that extend it.
            state: Of `prefill`; it is changed in place.

        Returns:
            (B, V + E) float logits.
        """
        assert isinstance(state, _TreeState)
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(ids), 1)], dim=1)
        if state.segments is not None:
            ids_so_far, counts, offsets = (torch.cat([each, each[:, -1:]], dim=1) for each in state.segments[:3])
            state.segments = state.segments._replace(ids=ids_so_far, counts=counts, offsets=offsets)
        if state.samples is not None:
            state.samples = torch.cat([state.samples, state.samples[:, -1:]], dim=1)
        numbers = torch.zeros_like(ids)
        if state.extra is not None:
            place = ids - self.config.vocab_size
            bases, own = (each[place.clamp(min=0)] for each in state.extra)
            ids, numbers = torch.where(place < 0, ids, bases), torch.where(place < 0, 0, own)
        # The context was read before: the new token alone asks, and it sees everything.
        layout = Layout.dense(len(ids), 1, start=state.mask.shape[1] - 1, mask=state.mask, device=ids.device)
        return self._next(ids.unsqueeze(1), numbers.unsqueeze(1), layout, state)

    def _next(self, ids: Tensor, numbers: Tensor, layout: Layout, state: "_TreeState") -> Tensor:
        position = self._bias.of_rows(layout, state.segments, state.samples)
        hidden = self.decoder(self.embeddings(ids, numbers), layout, caches=state.caches, position=position)
        scores = self._scores(hidden[:, -1], state.extra)
        return scores if state.writable is None else scores.masked_fill(~state.writable, float("-inf"))
