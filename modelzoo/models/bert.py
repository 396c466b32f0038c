"""BERT (Devlin et al., 2019): the post-norm encoder with segments and learned positions."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from modelzoo.converters import Task
from modelzoo.models.encoder_model import EncoderConfig, EncoderModel, TextEmbeddings

__all__ = ["Bert", "BertConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig(EncoderConfig):
    """Sizes and options of a BERT; the defaults are bert-base-uncased's."""

    vocab_size: int = 30522
    """Rows of the token embedding."""


class Bert(EncoderModel):
    """BERT for one of five tasks.

    Equal to transformers' `BertModel`, `BertForMaskedLM`, `BertForSequenceClassification`, `BertForTokenClassification` and
    `BertForQuestionAnswering`, in logits and gradients, at every real token.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "bert"
    config_class = BertConfig
    pooled_tasks: ClassVar[tuple[Task, ...]] = ("base", "classification")

    def build_embeddings(self, config: EncoderConfig) -> TextEmbeddings:
        """Return embeddings whose first position is row 0."""
        return TextEmbeddings(config, position_offset=0, position_padding_idx=None)

    def positions(self, ids: Tensor) -> Tensor | None:
        """Return None: a token's position is its column, padding included.

        Args:
            ids: (B, T) int64.
        """
        return None
