"""BERT (Devlin et al., 2019): the post-norm encoder with segments and learned positions."""

from dataclasses import dataclass
from typing import ClassVar

from modelzoo.converters import Task
from modelzoo.models.encoder_model import EncoderModel
from modelzoo.models.encoder_parts import SegmentedConfig

__all__ = ["Bert", "BertConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig(SegmentedConfig):
    """Sizes and options of a BERT; the defaults are bert-base-uncased's."""

    vocab_size: int = 30522
    """Rows of the token embedding."""


class Bert(EncoderModel):
    """BERT for one of six tasks.

    Equal to transformers' `BertModel`, `BertForMaskedLM`, `BertForSequenceClassification`, `BertForTokenClassification`,
    `BertForQuestionAnswering` and `BertForMultipleChoice`, in logits and gradients, at every real token.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "bert"
    config_class = BertConfig
    pooled_tasks: ClassVar[tuple[Task, ...]] = ("base", "classification", "multiple_choice")
