"""RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2020): BERT's encoder, with positions counted from padding_idx + 1."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.models.encoder_model import EncoderModel
from modelzoo.models.encoder_parts import EncoderConfig, SegmentedConfig, TextEmbeddings
from modelzoo.models.heads import DenseHead, LinearHead
from modelzoo.models.model import ModelConfig

__all__ = ["Roberta", "RobertaConfig", "XlmRoberta", "XlmRobertaConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RobertaConfig(SegmentedConfig):
    """Sizes and options of a RoBERTa; the defaults are roberta-base's."""

    vocab_size: int = 50265
    """Rows of the token embedding."""
    max_positions: int = 514
    """Rows of the position table, of which the first pad_token_id + 1 stand for no position."""
    type_vocab_size: int = 1
    """Rows of the segment table."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    pad_token_id: int = 1
    """Id of the padding token."""

    def __post_init__(self) -> None:
        """Check the values."""
        SegmentedConfig.__post_init__(self)
        if self.pad_token_id is None:
            raise ConfigError("pad_token_id=None: RoBERTa counts positions from it; give the id of the padding token")
        if self.max_positions <= self.pad_token_id + 1:
            raise ConfigError(
                f"max_positions={self.max_positions} leaves no position after pad_token_id={self.pad_token_id}; "
                f"use at least {self.pad_token_id + 2}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class XlmRobertaConfig(RobertaConfig):
    """Sizes and options of an XLM-R; the defaults are xlm-roberta-base's."""

    vocab_size: int = 250002
    """Rows of the token embedding."""


class Roberta(EncoderModel):
    """RoBERTa for one of six tasks.

    Equal to transformers' `Roberta...` classes, in logits and gradients, at every real token. The longest sequence has
    max_positions - pad_token_id - 1 tokens.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "roberta"
    config_class: ClassVar[type[ModelConfig]] = RobertaConfig
    pooled_tasks: ClassVar[tuple[Task, ...]] = ("base", "multiple_choice")

    @property
    def position_offset(self) -> int:
        """Hugging Face's number of the first position: pad_token_id + 1."""
        assert self.config.pad_token_id is not None  # RobertaConfig has checked
        return self.config.pad_token_id + 1

    def build_embeddings(self, config: EncoderConfig) -> TextEmbeddings:
        """Return embeddings whose first position is row pad_token_id + 1."""
        return TextEmbeddings(config, position_offset=self.position_offset, position_padding_idx=config.pad_token_id)

    def positions(self, ids: Tensor) -> Tensor | None:
        """Count the tokens that are not padding, by their ids and not by the mask, as fairseq and transformers do.

        Args:
            ids: (B, T) int64.

        Returns:
            (B, T) int64: 0 for the first token, -1 for a padding token.
        """
        pad = self.config.pad_token_id
        assert pad is not None  # RobertaConfig has checked
        present = ids.ne(pad).long()
        return present.cumsum(1) * present - 1

    def build_head(self, config: EncoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task.

        The classifier has a dense layer of its own in place of a pooler; choices are scored from the pooler. The language-model
        head has gelu whatever the config's activation is, as fairseq and transformers do.
        """
        if task == "classification":
            return DenseHead(config.hidden_size, config.num_labels, dropout=config.head_dropout)
        if task == "multiple_choice":
            return LinearHead(config.hidden_size, 1, dropout=config.hidden_dropout)
        return super().build_head(dataclasses.replace(config, activation="gelu"), task)


class XlmRoberta(Roberta):
    """XLM-R: RoBERTa with a vocabulary of a hundred languages.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "xlm-roberta"
    config_class = XlmRobertaConfig
