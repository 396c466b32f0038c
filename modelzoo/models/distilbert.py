"""DistilBERT (Sanh et al., 2019): BERT with half the layers, no segments and no pooler."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import Encoder
from modelzoo.models.encoder_model import UnsegmentedModel
from modelzoo.models.encoder_parts import EncoderConfig, post_norm_encoder
from modelzoo.models.heads import DenseHead, LinearHead

__all__ = ["DistilBert", "DistilBertConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilBertConfig(EncoderConfig):
    """Sizes and options of a DistilBERT; the defaults are distilbert-base-uncased's."""

    vocab_size: int = 30522
    """Rows of the token embedding."""
    num_layers: int = 6
    """Transformer blocks, at least 1."""
    classifier_dropout: float | None = 0.2
    """Probability of dropping a feature within the classifier of whole texts."""
    qa_dropout: float = 0.1
    """Probability of dropping a feature before the scores of question answering."""
    has_sinusoidal_positions: bool = False
    """Whether the position table starts as sines and cosines; it is trained either way."""

    def __post_init__(self) -> None:
        """Check the values."""
        EncoderConfig.__post_init__(self)
        if self.classifier_dropout is None:
            raise ConfigError("classifier_dropout=None: DistilBERT's config.json takes a number alone; give hidden_dropout's")
        if not 0 <= self.qa_dropout < 1:
            raise ConfigError(f"qa_dropout={self.qa_dropout} must lie in 0 to 1, 1 excluded")
        if self.norm_eps != 1e-12:
            raise ConfigError(f"norm_eps={self.norm_eps}: DistilBERT has 1e-12, and its config.json no field for another")
        if self.has_sinusoidal_positions and self.hidden_size % 2:
            raise ConfigError(f"hidden_size={self.hidden_size} must be even for sinusoidal positions")


class DistilBert(UnsegmentedModel):
    """DistilBERT for one of five tasks.

    Equal to transformers' `DistilBertModel`, `DistilBertForMaskedLM`, `DistilBertForSequenceClassification`,
    `DistilBertForTokenClassification` and `DistilBertForQuestionAnswering`, in logits and gradients, at every real token.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "distilbert"
    config_class = DistilBertConfig
    pooled_tasks = ()

    def build_encoder(self, config: EncoderConfig) -> Encoder:
        """Return BERT's stack, without its dropout after the attention."""
        return post_norm_encoder(config, attention_output_dropout=0.0)

    def build_head(self, config: EncoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; each has a dropout of its own."""
        assert isinstance(config, DistilBertConfig)
        size, labels = config.hidden_size, config.num_labels
        if task in ("classification", "multiple_choice"):
            labels = self.num_scores(config, task)
            return DenseHead(size, labels, dropout=config.head_dropout, activation_name="relu", drops_input=False)
        if task == "token_classification":
            return LinearHead(size, labels, dropout=config.hidden_dropout)
        if task == "question_answering":
            return LinearHead(size, 2, dropout=config.qa_dropout)
        return super().build_head(config, task)

    def init_weights(self, only: Collection[str] | None = None) -> None:
        """Give layers their first values; see `Model.init_weights`."""
        super().init_weights(only)
        assert isinstance(self.config, DistilBertConfig)
        name = "embeddings.position.weight"
        if self.config.has_sinusoidal_positions and (only is None or name in only):
            self.fill(self.get_parameter(name), lambda table: table.copy_(_sinusoids(*table.shape)))


def _sinusoids(rows: int, size: int) -> Tensor:
    """Return (rows, size) float32: sines in even columns and cosines in odd ones (Vaswani et al., 2017, section 3.5)."""
    wavelengths = torch.exp(torch.arange(0, size, 2, dtype=torch.float64, device="cpu") * (-math.log(10000.0) / size))
    phases = torch.arange(rows, dtype=torch.float64, device="cpu").unsqueeze(1) * wavelengths
    return torch.stack([phases.sin(), phases.cos()], dim=-1).flatten(1).float()
