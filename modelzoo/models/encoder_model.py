"""What BERT and its relatives share: embeddings with a norm, a post-norm encoder, and heads for six tasks.

A family's file says how it counts positions and which heads it has; the way through the model is written once, here.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.layers import Embedding, Encoder, Layout
from modelzoo.models.answers import answer_output
from modelzoo.models.encoder_parts import EncoderConfig, SegmentedConfig, TextEmbeddings, post_norm_encoder
from modelzoo.models.heads import LinearHead, MaskedLmHead, Pooler
from modelzoo.models.inputs import check_ids, check_length, check_shape
from modelzoo.models.losses import IGNORED, cross_entropy
from modelzoo.models.model import Model, ModelOutput
from modelzoo.models.targets import choice_targets, require_label_kind, targets

__all__ = ["EncoderModel", "UnsegmentedModel"]


class EncoderModel(Model):
    """A bidirectional encoder with one of six heads.

    Padding is dropped at the door: blocks see real tokens alone. Hidden states at padding are zeros. The token that a classifier
    reads is the first real one of each row, whichever side the padding is on.

    Args:
        config: Of the family.
        task: "base", "masked_lm", "classification", "token_classification", "question_answering" or "multiple_choice".
    """

    config: EncoderConfig
    tasks: ClassVar[tuple[Task, ...]] = (
        "base",
        "masked_lm",
        "classification",
        "token_classification",
        "question_answering",
        "multiple_choice",
    )
    pooled_tasks: ClassVar[tuple[Task, ...]]
    """The tasks whose model has a pooler."""

    def __init__(self, config: EncoderConfig, task: Task = "base") -> None:
        super().__init__(config, task)
        self.embeddings = self.build_embeddings(config)
        self.encoder = self.build_encoder(config)
        self.pooler = Pooler(config.hidden_size) if task in self.pooled_tasks else None
        self.head = self.build_head(config, task)

    def build_embeddings(self, config: EncoderConfig) -> nn.Module:
        """Return the embeddings, with the token table as `token`: from ids, segments and positions to hidden states."""
        return TextEmbeddings(config)

    def build_encoder(self, config: EncoderConfig) -> Encoder:
        """Return the stack."""
        return post_norm_encoder(config)

    @property
    def position_offset(self) -> int:
        """Hugging Face's number of the first position."""
        return 0

    def positions(self, ids: Tensor) -> Tensor | None:
        """Return (B, T) int64 positions, or None for a token's column, padding included.

        Args:
            ids: (B, T) int64.
        """
        return None

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
        if task == "base":
            return None
        return LinearHead(config.hidden_size, self.num_scores(config, task), dropout=config.head_dropout)

    @staticmethod
    def num_scores(config: EncoderConfig, task: Task) -> int:
        """Return how many scores a head gives for what it reads: a label's each, a start and an end, or one for a choice."""
        return {"question_answering": 2, "multiple_choice": 1}.get(task, config.num_labels)

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.max_positions - self.position_offset

    @property
    def _token_table(self) -> Embedding:
        table: Embedding = self.embeddings.token  # type: ignore[assignment]  # a module's attribute
        return table

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
            input_ids: (B, T) int64 in [0, vocab_size). "multiple_choice": (B, C, T), and so are the next three, for C choices; one
                without any token is no choice, and its score is the lowest float. Its (B, T) are scored one by one.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            token_type_ids: (B, T) int64 in [0, type_vocab_size); None for zeros.
            position_ids: (B, T) int64 positions, as Hugging Face counts them; None for the family's own count.
            labels: "classification", "multiple_choice": (B,) int64; "token_classification", "masked_lm": (B, T) int64; -100 is
                ignored, and so is what stands at padding.
            start_positions: "question_answering": (B,) int64 column of the answer's first token.
            end_positions: "question_answering": (B,) int64 column of its last token.

        Returns:
            The loss where labels were given, and the task's scores. While training a masked LM with labels, the head runs on the
            labelled tokens alone, and `logits` is None.

        Raises:
            DataError: An id, a type, a label or a length is out of range, or labels were given that the task does not take.
        """
        if self.task == "multiple_choice" and input_ids.dim() == 3:
            given = {"token_type_ids": token_type_ids, "position_ids": position_ids}
            return self._choose(input_ids, attention_mask, labels, given)
        require_label_kind(self.task, labels, start_positions, end_positions)
        layout = self._layout(input_ids, attention_mask, token_type_ids, position_ids)
        segments = None if token_type_ids is None else layout.pack(token_type_ids)
        hidden = self.embeddings(layout.pack(input_ids), segments, layout.positions)
        return self._run(hidden, layout, attention_mask, labels, start_positions, end_positions)

    def _run(
        self,
        hidden: Tensor,
        layout: Layout,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        start_positions: Tensor | None,
        end_positions: Tensor | None,
    ) -> ModelOutput:
        """Go from embedded tokens to the task's output."""
        if self.task in ("classification", "multiple_choice"):
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
            return answer_output(scores, layout, attention_mask, start_positions, end_positions)
        return self._scored(scores, labels, layout)

    def _choose(
        self, input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None, given: Mapping[str, Tensor | None]
    ) -> ModelOutput:
        """Score (B, C, T) choices as B x C texts, and take a row's scores together."""
        rows, choices = input_ids.shape[:2]
        for name, tensor in {"attention_mask": attention_mask, **given}.items():
            if tensor is not None:
                check_shape(name, tensor, input_ids)
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        flat = {name: tensor.flatten(0, 1) for name, tensor in given.items() if tensor is not None}
        scores = self.forward(input_ids.flatten(0, 1), attention_mask=mask, **flat).logits
        assert scores is not None
        scores = scores.view(rows, choices)
        absent = None if mask is None else ~mask.bool().any(1).view(rows, choices)
        if absent is not None:
            scores = scores.masked_fill(absent, torch.finfo(scores.dtype).min)
        if labels is None:
            return ModelOutput(logits=scores)
        return ModelOutput(loss=cross_entropy(scores, choice_targets(labels, absent, rows, choices)), logits=scores)

    def _layout(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> Layout:
        """Check the inputs and say where the real tokens are."""
        lead = self.encoder.lead
        check_ids("input_ids", input_ids, self.config.vocab_size, "vocab_size")
        if token_type_ids is not None:
            assert isinstance(self.config, SegmentedConfig)
            check_ids("token_type_ids", token_type_ids, self.config.type_vocab_size, "type_vocab_size")
            check_shape("token_type_ids", token_type_ids, input_ids)
        if position_ids is not None:
            check_ids("position_ids", position_ids, self.config.max_positions, "max_positions")
            check_shape("position_ids", position_ids, input_ids, may_be_one_row=True)
            positions: Tensor | None = position_ids - self.position_offset
        else:
            positions = self.positions(input_ids)
            positions = None if positions is None else positions + lead
        if attention_mask is None:
            layout = Layout.dense(*input_ids.shape, positions=positions, device=input_ids.device, lead=lead)
        else:
            check_shape("attention_mask", attention_mask, input_ids)
            layout = Layout.packed(attention_mask, positions, lead=lead)
        longest = int(layout.positions.max()) + 1 if layout.positions.numel() else 0
        note = f"{self.config.max_positions} positions"
        note += f", padding_idx {self.position_offset - 1}" if self.position_offset else ""
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
            return self._scored(layout.unpack(self.head(hidden, self._token_table)), labels, layout)
        wanted = layout.pack(targets(labels, layout, layout.batch_shape, self.config.vocab_size)).flatten()
        supervised = wanted != IGNORED
        scores = self.head(hidden.flatten(0, -2)[supervised], self._token_table)
        return ModelOutput(loss=cross_entropy(scores, wanted[supervised]))


class UnsegmentedModel(EncoderModel):
    """An encoder whose tokens belong to no segments, so that its forward takes no token types.

    Args:
        config: Of the family.
        task: As of `EncoderModel`.
    """

    def forward(  # type: ignore[override]  # token types are left out, and a caller asks a forward what it takes
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: As of `EncoderModel.forward`, and so are all others.
            attention_mask: (B, T).
            position_ids: (B, T) int64.
            labels: (B,) or (B, T) int64.
            start_positions: (B,) int64.
            end_positions: (B,) int64.

        Returns:
            As `EncoderModel.forward`.

        Raises:
            DataError: As `EncoderModel.forward`.
        """
        return super().forward(input_ids, attention_mask, None, position_ids, labels, start_positions, end_positions)
