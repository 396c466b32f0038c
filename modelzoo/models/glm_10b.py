"""GLM-10B (Du et al., 2022) as ModelCenter has it: blanks are written after the text, each at the position of its mask.

A text ends where its first start token stands. What follows is one or more blanks, each begun by a start token: every token of a
blank has the position of the blank's mask token, and a second position that counts within the blank. This is not the architecture
that transformers calls glm (ChatGLM's successor, with rotary positions), so its model_type here is "glm-10b".
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from modelzoo.errors import DataError
from modelzoo.layers import Decoder, Layout, LearnedPositionEmbedding
from modelzoo.models.cpm_decoder import CpmDecoder, cpm_block, cpm_norm
from modelzoo.models.cpm_texts import Marks
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.decoding import DecodingState
from modelzoo.models.glm_10b_blanks import BlankPositions, given_or_found
from modelzoo.models.glm_10b_config import GLM10BConfig
from modelzoo.models.inputs import check_length
from modelzoo.models.losses import IGNORED
from modelzoo.models.model import ModelOutput

__all__ = ["GLM10B", "GLM10BConfig"]


class _Embeddings(DecoderEmbeddings):
    """Tables of tokens, of places in the text, and of places in a blank."""

    def __init__(self, config: GLM10BConfig) -> None:
        position = LearnedPositionEmbedding(config.max_positions, config.hidden_size)
        super().__init__(config.vocab_size, config.hidden_size, position=position, dropout=config.embedding_dropout)
        self.blank = LearnedPositionEmbedding(config.max_positions, config.hidden_size)


@dataclass(slots=True)
class _BlankState(DecodingState):
    """Where the next token of each blank stands."""

    text: Tensor = field(default_factory=lambda: torch.empty(0))
    """(B,) int64."""
    blank: Tensor = field(default_factory=lambda: torch.empty(0))
    """(B,) int64."""

    def reorder(self, rows: Tensor) -> None:
        """Replace sequence i by sequence `rows[i]`."""
        DecodingState.reorder(self, rows)
        self.text, self.blank = self.text[rows], self.blank[rows]


class GLM10B(CpmDecoder):
    """GLM-10B, as a backbone or as a language model.

    Args:
        config: Sizes and options.
        task: "base" or "causal_lm".
    """

    family = "glm-10b"
    config_class = GLM10BConfig
    config: GLM10BConfig
    embeddings: _Embeddings

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the three tables."""
        assert isinstance(config, GLM10BConfig)
        return _Embeddings(config)

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return pre-norm blocks and the last norm."""
        assert isinstance(config, GLM10BConfig)
        return Decoder((cpm_block(config) for _ in range(config.num_layers)), cpm_norm(config))

    def _embed(self, ids: Tensor, segments: Tensor | None, layout: Layout) -> Tensor:
        assert self.embeddings.position is not None
        parts = self.embeddings.token(ids) + self.embeddings.position(layout.positions) + self.embeddings.blank(segments)
        embedded: Tensor = self.embeddings.dropout(parts)
        return embedded

    def forward(  # type: ignore[override]  # texts with a context, and no caches from outside
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        position_ids: Tensor | None = None,
        block_position_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. Padding may be on either side.
            context: (B, T), non-zero at tokens that see each other on both sides and are not predicted. None for those before the
                first start token; in a row without one for all, or with labels for those before the first labelled one.
            position_ids: (B, T) int64: places in the text; None to find the blanks' mask tokens.
            block_position_ids: (B, T) int64: places in a blank; None to count from the start tokens.
            labels: "causal_lm": (B, T) int64; -100 and tokens of the context are ignored. `labels[:, 1:]` are predicted.

        Returns:
            The loss where labels were given, and the task's scores. While training a language model with labels, `logits` is None.

        Raises:
            DataError: An id, a label or a shape is out of range, or a blank has no mask token.
        """
        marks = {"context": context, "position_ids": position_ids, "block_position_ids": block_position_ids}
        self._check(input_ids, labels, attention_mask=attention_mask, **marks)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        text, blank, is_text = self._positions(input_ids, mask, position_ids, block_position_ids)
        if context is None:
            whole = (is_text | (mask == 0)).all(1, keepdim=True)
            unlabelled = torch.ones_like(is_text) if labels is None else (labels != IGNORED).cumsum(1) == 0
            context = torch.where(whole, unlabelled, is_text)
        return self._read(input_ids, mask, Marks(context=context, segments=blank, positions=text), labels)

    def _positions(self, ids: Tensor, mask: Tensor, text: Tensor | None, blank: Tensor | None) -> BlankPositions:
        own = {name: getattr(self.config, name) for name in ("start_token_id", "mask_token_id", "max_positions")}
        return given_or_found(ids, mask.bool(), text, blank, **own)

    def prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        *,
        position_ids: Tensor | None = None,
        block_position_ids: Tensor | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """Read texts that end in a start token, or within a blank, and make room for what follows.

        Args:
            input_ids: (B, T) int64; the prompts end in the last column, so padding is on the left.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            max_new_tokens: Tokens that will follow at most.
            position_ids: As in `forward`.
            block_position_ids: As in `forward`.

        Returns:
            (B, V) float logits of the next token, and what `decode` goes on from.

        Raises:
            DataError: A prompt has padding on the right, no start token or no mask token, or its blank would be too long.
        """
        given = {"position_ids": position_ids, "block_position_ids": block_position_ids}
        mask = self._prompt_mask(input_ids, attention_mask, **given)
        text, blank, is_text = self._positions(input_ids, mask, position_ids, block_position_ids)
        if bool((blank[:, -1] == 0).any()):
            row = int((blank[:, -1] == 0).nonzero()[0])
            raise DataError(f"input_ids: row {row} has no start token {self.config.start_token_id}, after which a blank is written")
        longest = int(blank[:, -1].max()) + max_new_tokens
        check_length(longest + 1, self.config.max_positions, f"{self.config.max_positions} places in a blank")
        rows, width = input_ids.shape
        state = _BlankState(mask, self._new_caches(rows, width + max_new_tokens), text=text[:, -1], blank=blank[:, -1])
        layout = Layout.dense(rows, width, positions=text, mask=mask, context=is_text, device=input_ids.device)
        return self._next(input_ids, blank, layout, state), state

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append one token to every blank and score the next.

        Args:
            ids: (B,) int64.
            state: Of `prefill`; it is changed in place.

        Returns:
            (B, V) float logits.
        """
        assert isinstance(state, _BlankState)
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(ids), 1)], dim=1)
        state.blank = state.blank + 1
        start = state.mask.shape[1] - 1
        layout = Layout.dense(len(ids), 1, start=start, positions=state.text.unsqueeze(1), mask=state.mask, device=ids.device)
        return self._next(ids.unsqueeze(1), state.blank.unsqueeze(1), layout, state)

    def _next(self, ids: Tensor, blank: Tensor, layout: Layout, state: DecodingState) -> Tensor:
        return self._logits(self.decoder(self._embed(ids, blank, layout), layout, caches=state.caches)[:, -1])
