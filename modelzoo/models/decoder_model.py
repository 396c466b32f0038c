"""What GPT and its relatives share: embeddings, a causal stack, and heads for four tasks, with or without caches.

A family's file says what its embeddings and blocks are; the way through the model is written once, here.
"""

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import DataError
from modelzoo.layers import Decoder, Embedding, KeyValueCache, Layout, Linear
from modelzoo.models.answers import answer_output
from modelzoo.models.decoder_parts import DecoderConfig, DecoderEmbeddings
from modelzoo.models.decoding import DecodingState, new_caches
from modelzoo.models.heads import LinearHead
from modelzoo.models.inputs import check_ids, check_left_padded, check_length, check_shape
from modelzoo.models.lm_loss import lm_loss
from modelzoo.models.losses import IGNORED, cross_entropy
from modelzoo.models.model import Model, ModelOutput
from modelzoo.models.targets import require_label_kind, targets

__all__ = ["DecoderConfig", "DecoderEmbeddings", "DecoderModel"]


class DecoderModel(Model):
    """A causal decoder with one of five heads.

    Positions are counted from the attention mask, so that padding on the left changes nothing. A classifier reads the last real
    token of each row. Without caches, padding is dropped at the door as in the encoders.

    Args:
        config: Of the family.
        task: "base", "causal_lm", "classification", "token_classification" or "question_answering".
    """

    config: DecoderConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm", "classification", "token_classification", "question_answering")
    embeddings: DecoderEmbeddings
    decoder: Decoder

    def __init__(self, config: DecoderConfig, task: Task = "base") -> None:
        super().__init__(config, task)
        self.embeddings = self.build_embeddings(config)
        self.decoder = self.build_decoder(config)
        self.head = self.build_head(config, task)

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the embeddings."""
        raise NotImplementedError

    def build_decoder(self, config: DecoderConfig) -> Decoder:
        """Return the stack."""
        raise NotImplementedError

    def build_head(self, config: DecoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; None for "base", and for a language model whose head is its token table."""
        if task == "causal_lm":
            return (
                None
                if config.tie_word_embeddings
                else Linear(config.hidden_size, config.vocab_size, bias=False, tensor_split="vocabulary")
            )
        if task == "classification":
            return Linear(config.hidden_size, config.num_labels, bias=False)
        if task == "token_classification":
            return LinearHead(config.hidden_size, config.num_labels, dropout=config.classifier_dropout)
        return LinearHead(config.hidden_size, 2) if task == "question_answering" else None

    @property
    def logit_scale(self) -> float:
        """Factor on the hidden states before the language model's head (MiniCPM)."""
        return 1.0

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.max_positions

    @property
    def max_cached_length(self) -> int:
        """The longest sequence that can be written with caches, in tokens."""
        return self.max_length

    def shard_units(self) -> list[nn.Module]:
        """Return the decoder's blocks in forward order."""
        return list(self.decoder.layers)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, T) int64 in [0, vocab_size).
            attention_mask: (B, T), non-zero where there is a token; None when all are. With caches (B, cached + T).
            position_ids: (B, T) int64; None to count the tokens of the mask.
            labels: "causal_lm" and "token_classification": (B, T) int64; "classification": (B,) int64; -100 is ignored. A language
                model is scored on predicting `labels[:, 1:]`.
            caches: One a block: earlier tokens' keys and values, to which these tokens' are added. A language model then returns
                the last token's logits alone, (B, 1, V).
            start_positions: "question_answering": (B,) int64 column of the answer's first token.
            end_positions: "question_answering": (B,) int64 column of its last token.

        Returns:
            The loss where labels were given, and the task's scores. While training a language model with labels, `logits` is None:
            they never exist all at once.

        Raises:
            DataError: An id, a label or a length is out of range, or labels were given that the task does not take.
        """
        require_label_kind(self.task, labels, start_positions, end_positions)
        self._check_caches_fit(labels, caches)
        layout = self._layout(input_ids, attention_mask, position_ids, caches)
        hidden = self.embeddings(layout.pack(input_ids), layout.positions)
        if self.task == "classification":
            last = layout.last_rows()
            pooled = last.spread(self.decoder(hidden, layout, selection=last))
            return self._scored(pooled, labels, layout)
        hidden = self.decoder(hidden, layout, caches=caches)
        if self.task == "base":
            return ModelOutput(last_hidden_state=layout.unpack(hidden))
        if self.task == "token_classification":
            return self._scored(layout.unpack(hidden), labels, layout)
        if self.task == "question_answering":
            assert self.head is not None
            return answer_output(layout.unpack(self.head(hidden)), layout, attention_mask, start_positions, end_positions)
        if caches is not None:
            return ModelOutput(logits=self._logits(hidden[:, -1:]))
        return self._language_model(hidden, layout, labels)

    def _check_caches_fit(self, labels: Tensor | None, caches: Sequence[KeyValueCache] | None) -> None:
        if caches is not None and labels is not None:
            raise DataError("caches were given with labels; score a whole text without caches")
        if caches is not None and self.task == "classification":
            raise DataError("caches were given to a model for classification, which reads whole texts; leave them out")

    def _layout(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        caches: Sequence[KeyValueCache] | None,
    ) -> Layout:
        """Check the inputs and say where the real tokens are."""
        check_ids("input_ids", input_ids, self.config.vocab_size, "vocab_size")
        rows, width = input_ids.shape
        start, lead = caches[0].length - caches[0].lead if caches else 0, self.decoder.lead
        positions = position_ids
        if position_ids is not None:
            check_ids("position_ids", position_ids, self.config.max_positions, "max_positions")
            check_shape("position_ids", position_ids, input_ids, may_be_one_row=True)
        if attention_mask is not None:
            if attention_mask.shape != (rows, start + width):
                raise DataError(f"attention_mask must have shape {(rows, start + width)}, found {tuple(attention_mask.shape)}")
            if positions is None:
                positions = (attention_mask.bool().cumsum(1) - 1).clamp(min=0)[:, start:] + lead
        if attention_mask is None or caches is not None:
            layout = Layout.dense(
                rows, width, start=start, positions=positions, mask=attention_mask, device=input_ids.device, lead=lead
            )
        else:
            layout = Layout.packed(attention_mask, positions, lead=lead)
        longest = int(layout.positions.max()) + 1 if layout.positions.numel() else 0
        check_length(longest, self.max_length, f"{self.config.max_positions} positions")
        return layout

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> tuple[Tensor, DecodingState]:
        """Read a prompt and make room for what follows.

        Args:
            input_ids: (B, T) int64; the prompts end in the last column, so padding is on the left.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            max_new_tokens: Tokens that will follow at most.

        Returns:
            (B, V) float logits of the next token, and what `decode` goes on from.

        Raises:
            DataError: A prompt has padding on the right, or prompt and new tokens do not fit the model.
        """
        self.require_task("causal_lm")
        rows, width = input_ids.shape
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        check_left_padded(mask)
        check_length(
            self.decoder.lead + width + max_new_tokens,
            self.max_cached_length,
            f"a prompt of {width} and {max_new_tokens} new tokens",
        )
        caches = new_caches(self.decoder, rows, width + max_new_tokens, self.embeddings.token.weight)
        state = DecodingState(mask, caches, has_padding=not bool(mask.all()))
        return self._decode(input_ids, state), state

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append one token to every sequence and score the next.

        Args:
            ids: (B,) int64.
            state: Of `prefill`; it is changed in place.

        Returns:
            (B, V) float logits.
        """
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(ids), 1)], dim=1)
        return self._decode(ids.unsqueeze(1), state)

    def _decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        logits = self(ids, attention_mask=state.mask if state.has_padding else None, caches=state.caches).logits
        assert logits is not None
        scores: Tensor = logits[:, -1]
        return scores

    def _scored(self, hidden: Tensor, labels: Tensor | None, layout: Layout) -> ModelOutput:
        assert self.head is not None
        logits = self.head(hidden)
        if labels is None:
            return ModelOutput(logits=logits)
        wanted = targets(labels, layout, tuple(logits.shape[:-1]), self.config.num_labels)
        return ModelOutput(loss=cross_entropy(logits, wanted), logits=logits)

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.logit_scale != 1.0:
            hidden = hidden * self.logit_scale
        scores: Tensor = self.embeddings.token.logits(hidden) if self.head is None else self.head(hidden)
        return scores

    def _language_model(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> ModelOutput:
        if labels is None:
            return ModelOutput(logits=layout.unpack(self._logits(hidden)))
        labels = targets(labels, layout, layout.batch_shape, self.config.vocab_size)
        following = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)
        if not self.training:
            logits = layout.unpack(self._logits(hidden))
            return ModelOutput(loss=cross_entropy(logits, following), logits=logits)
        table = cast(Embedding | Linear, self.embeddings.token if self.head is None else self.head)
        flat = layout.pack(following).flatten()
        return ModelOutput(loss=lm_loss(hidden.flatten(0, -2) * self.logit_scale, table, flat))
