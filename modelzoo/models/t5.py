"""T5 (Raffel et al., 2020): an encoder-decoder with bucketed relative positions, RMS norms and no biases.

One class serves T5 v1.0 (ReLU, head tied to the token table and scaled by 1/sqrt(D)), v1.1, FLAN and mT5 (gated, untied, not
scaled). Whether the head is tied is what the file's tensors say; whether it is scaled is a field of its own.
"""

from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import DataError
from modelzoo.layers import Decoder, Dropout, Embedding, Encoder, Layout, Linear, RMSNorm, TransformerBlock
from modelzoo.models.answers import answer_output
from modelzoo.models.decoding import DecodingState, new_caches
from modelzoo.models.heads import DenseHead, LinearHead
from modelzoo.models.inputs import check_ids, check_labels, check_shape
from modelzoo.models.lm_loss import lm_loss
from modelzoo.models.losses import cross_entropy
from modelzoo.models.model import Model, ModelConfig, ModelOutput
from modelzoo.models.t5_config import T5Config
from modelzoo.models.t5_parts import at_last, block, check_dtype, initial_std, position_bias, shifted
from modelzoo.models.targets import require_label_kind, targets

__all__ = ["T5", "T5Config"]


class T5(Model):
    """T5 for one of six tasks.

    It runs in float32 and bfloat16; float16 is refused, because the published weights overflow there.
    Equal to transformers' `T5Model`, `T5EncoderModel`, `T5ForConditionalGeneration`, `T5ForSequenceClassification`,
    `T5ForTokenClassification` and `T5ForQuestionAnswering`. There is no longest sequence: distances beyond
    `max_distance` look alike.

    Args:
        config: Sizes and options.
        task: "base" (encoder and decoder), "encoder", "seq2seq_lm", "classification", "token_classification" or
            "question_answering".
    """

    family = "t5"
    config_class: ClassVar[type[ModelConfig]] = T5Config
    config: T5Config
    tasks: ClassVar[tuple[Task, ...]] = (
        "base", "encoder", "seq2seq_lm", "classification", "token_classification", "question_answering",
    )  # fmt: skip
    runs_in_float16: ClassVar[bool] = False

    def __init__(self, config: T5Config, task: Task = "seq2seq_lm") -> None:
        super().__init__(config, task)
        self.token = Embedding(config.vocab_size, config.hidden_size)
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(
            (self._block(config, is_decoder=False) for _ in range(config.num_layers)),
            RMSNorm(config.hidden_size, config.norm_eps),
            position_bias(config, is_bidirectional=True),
        )
        self.decoder = self._decoder(config) if task not in ("encoder", "token_classification") else None
        self.head = self._head(config, task)

    def _block(self, config: T5Config, *, is_decoder: bool) -> TransformerBlock:
        return block(config, is_decoder=is_decoder)

    def _decoder(self, config: T5Config) -> Decoder:
        return Decoder(
            (self._block(config, is_decoder=True) for _ in range(config.num_decoder_layers)),
            RMSNorm(config.hidden_size, config.norm_eps),
            position_bias(config, is_bidirectional=False),
        )

    @staticmethod
    def _head(config: T5Config, task: Task) -> nn.Module | None:
        if task == "seq2seq_lm" and not config.tie_word_embeddings:
            return Linear(config.hidden_size, config.vocab_size, bias=False, tensor_split="vocabulary")
        if task == "classification":
            return DenseHead(config.hidden_size, config.num_labels, dropout=config.classifier_dropout)
        if task == "token_classification":
            return LinearHead(config.hidden_size, config.num_labels, dropout=config.classifier_dropout)
        return LinearHead(config.hidden_size, 2) if task == "question_answering" else None

    @property
    def max_length(self) -> int:
        """A number that no text reaches: relative positions have no end."""
        return 1 << 30

    def shard_units(self) -> list[nn.Module]:
        """Return the blocks of the encoder, then those of the decoder."""
        return [*self.encoder.layers, *(self.decoder.layers if self.decoder is not None else [])]

    def tied_parameters(self) -> list[tuple[str, str]]:
        """Return the token table, which both stacks read; a tied head is the table itself and no second module."""
        return [("token.weight", "decoder")] if self.decoder is not None else []

    def init_weights(self, only: object = None) -> None:
        """Give layers their first values by Mesh TensorFlow's rules, and recompute buffers; see `Model.init_weights`."""
        super().init_weights(only)  # type: ignore[arg-type]  # same meaning, wider type
        wanted = None if only is None else set(only)  # type: ignore[call-overload]  # a collection of names
        for name, parameter in self.named_parameters():
            std = initial_std(name, self.config)
            if std is not None and (wanted is None or name in wanted):
                self.fill(parameter, partial(nn.init.normal_, std=std * self.config.initializer_range))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: (B, S) int64 in [0, vocab_size).
            attention_mask: (B, S), non-zero where there is a token; None when all are.
            decoder_input_ids: (B, T) int64; None for `labels` shifted by one, or, for classification and question
                answering, the input shifted by one.
            decoder_attention_mask: (B, T); None when all are tokens.
            labels: "seq2seq_lm": (B, T) int64; "classification": (B,); "token_classification": (B, S); -100 is ignored.
            start_positions: "question_answering": (B,) int64 column of the answer's first token.
            end_positions: "question_answering": (B,) int64 column of its last token.

        Returns:
            The loss where labels were given, and the task's scores. `last_hidden_state` is the decoder's for "base", the encoder's
            for "encoder". While training a seq2seq_lm with labels, `logits` is None: they never exist all at once.

        Raises:
            DataError: An id or a label is out of range, or an input is missing.
            ConfigError: It would run in float16.
        """
        require_label_kind(self.task, labels, start_positions, end_positions)
        context, context_layout = self._encode(input_ids, attention_mask, decoder_attention_mask)
        if self.task == "encoder":
            return ModelOutput(last_hidden_state=context_layout.unpack(context))
        if self.task == "token_classification":
            return self._scored(context_layout.unpack(context), labels, context_layout)
        decoder_ids = self._shifted(input_ids, labels) if decoder_input_ids is None else decoder_input_ids
        assert self.decoder is not None
        lead, is_packed = self.decoder.lead, context_layout.is_packed
        layout = self._layout("decoder_input_ids", decoder_ids, decoder_attention_mask, is_packed=is_packed, lead=lead)
        embedded = self.dropout(self.token(layout.pack(decoder_ids)))
        hidden = self.dropout(self.decoder(embedded, layout, context=context, context_layout=context_layout))
        if self.task == "base":
            return ModelOutput(last_hidden_state=layout.unpack(hidden))
        if self.task == "classification":
            last = at_last(layout.unpack(hidden), input_ids, self.config.eos_token_id)
            return self._scored(last, labels, context_layout)
        if self.task == "question_answering":
            assert self.head is not None
            scores = layout.unpack(self.head(hidden))
            return answer_output(scores, context_layout, attention_mask, start_positions, end_positions)
        return self._language_model(hidden, layout, labels)

    def _encode(self, ids: Tensor, mask: Tensor | None, decoder_mask: Tensor | None) -> tuple[Tensor, Layout]:
        if not self.runs_in_float16:
            check_dtype(self.token.weight)
        layout = self._layout("input_ids", ids, mask, is_packed=mask is not None or decoder_mask is not None)
        hidden = self.encoder(self.dropout(self.token(layout.pack(ids))), layout)
        return self.dropout(hidden), layout

    def _layout(self, name: str, ids: Tensor, mask: Tensor | None, *, is_packed: bool, lead: int = 0) -> Layout:
        check_ids(name, ids, self.config.vocab_size, "vocab_size")
        if not is_packed:
            return Layout.dense(*ids.shape, device=ids.device, lead=lead)
        if mask is not None:
            check_shape(name.replace("input_ids", "attention_mask"), mask, ids, of=name)
        return Layout.packed(torch.ones_like(ids) if mask is None else mask, lead=lead)

    def _shifted(self, input_ids: Tensor, labels: Tensor | None) -> Tensor:
        """Return what the decoder reads where nobody says: what it is to write, or for a class the input, one later."""
        source = input_ids if self.task in ("classification", "question_answering") else labels
        if source is None or self.task == "base":
            raise DataError(f"a T5 for {self.task} needs decoder_input_ids" + ("" if self.task == "base" else " or labels"))
        if self.task == "seq2seq_lm":  # before they become ids
            check_labels("labels", source, (len(input_ids), source.shape[-1]), self.config.vocab_size)
        return shifted(source, self.config.decoder_start_token_id, self.config.pad_token_id or 0)

    def _scored(self, hidden: Tensor, labels: Tensor | None, layout: Layout) -> ModelOutput:
        assert self.head is not None
        logits = self.head(hidden)
        if labels is None:
            return ModelOutput(logits=logits)
        wanted = targets(labels, layout, tuple(logits.shape[:-1]), self.config.num_labels)
        return ModelOutput(loss=cross_entropy(logits, wanted), logits=logits)

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden * self.config.hidden_size**-0.5 if self.config.scale_decoder_outputs else hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        scaled = self._scaled(hidden)
        scores: Tensor = self.token.logits(scaled) if self.head is None else self.head(scaled)
        return scores

    def _language_model(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> ModelOutput:
        if labels is None:
            return ModelOutput(logits=layout.unpack(self._logits(hidden)))
        labels = targets(labels, layout, layout.batch_shape, self.config.vocab_size)
        if not self.training:
            logits = layout.unpack(self._logits(hidden))
            return ModelOutput(loss=cross_entropy(logits, labels), logits=logits)
        table = cast(Embedding | Linear, self.token if self.head is None else self.head)
        return ModelOutput(loss=lm_loss(self._scaled(hidden).flatten(0, -2), table, layout.pack(labels).flatten()))

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> tuple[Tensor, DecodingState]:
        """Encode the input and start a decoder.

        Args:
            input_ids: (B, S) int64; padding on either side.
            attention_mask: (B, S), non-zero where there is a token; None when all are.
            max_new_tokens: Tokens that will be written at most.

        Returns:
            (B, V) float logits of the first token, and what `decode` goes on from.
        """
        self.require_task("seq2seq_lm")
        assert self.decoder is not None
        rows, width = input_ids.shape
        context, layout = self._encode(input_ids, attention_mask, None)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        like = self.token.weight
        state = DecodingState(
            mask=mask.new_ones(rows, 0),
            caches=new_caches(self.decoder, rows, max_new_tokens + 1, like),
            context=layout.unpack(context),
            context_mask=mask,
            context_caches=new_caches(self.decoder, rows, width, like, of_context=True),
        )
        start = torch.full((rows,), self.config.decoder_start_token_id, device=input_ids.device)
        return self.decode(start, state), state

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append one token to every sequence and score the next.

        Args:
            ids: (B,) int64.
            state: Of `prefill`; it is changed in place.

        Returns:
            (B, V) float logits.
        """
        assert self.decoder is not None
        assert state.context is not None
        rows = len(ids)
        state.mask = torch.cat([state.mask, state.mask.new_ones(rows, 1)], dim=1)
        hidden = self.decoder(
            self.dropout(self.token(ids.unsqueeze(1))),
            Layout.dense(rows, 1, start=state.mask.shape[1] - 1, device=ids.device, lead=self.decoder.lead),
            context=state.context,
            context_layout=Layout.dense(rows, state.context.shape[1], mask=state.context_mask, device=ids.device),
            caches=state.caches,
            context_caches=state.context_caches,
        )
        return self._logits(self.dropout(hidden[:, -1]))
