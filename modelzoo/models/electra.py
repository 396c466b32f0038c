"""ELECTRA (Clark et al., 2020): BERT's encoder, with tables narrower than the stack.

A checkpoint is a discriminator or a generator; the two have the same encoder at different sizes. The generator is the masked
language model. The head that tells replaced tokens from original ones is not built.
"""

from dataclasses import dataclass

from torch import nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.models.encoder_model import EncoderModel
from modelzoo.models.encoder_parts import EncoderConfig, SegmentedConfig, TextEmbeddings
from modelzoo.models.heads import DenseHead, MaskedLmHead

__all__ = ["Electra", "ElectraConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ElectraConfig(SegmentedConfig):
    """Sizes and options of an ELECTRA; the defaults are electra-small-discriminator's."""

    vocab_size: int = 30522
    """Rows of the token embedding."""
    embedding_size: int = 128
    """Width of the tables; a linear map leads to hidden_size where the two differ."""
    hidden_size: int = 256
    """D, a multiple of num_heads."""
    num_heads: int = 4
    """Attention heads of a block."""
    intermediate_size: int = 1024
    """Width of the feed-forward network."""
    summary_dropout: float = 0.1
    """Before the score of a choice."""

    def __post_init__(self) -> None:
        """Check the values."""
        SegmentedConfig.__post_init__(self)
        if self.embedding_size < 1:
            raise ConfigError(f"embedding_size={self.embedding_size} must be at least 1")
        if not 0 <= self.summary_dropout < 1:
            raise ConfigError(f"summary_dropout={self.summary_dropout} must lie in 0 to 1, 1 excluded")


class Electra(EncoderModel):
    """ELECTRA for one of five tasks.

    Equal to transformers' `ElectraModel`, `ElectraForMaskedLM`, `ElectraForSequenceClassification`,
    `ElectraForTokenClassification` and `ElectraForQuestionAnswering`, in logits and gradients, at every real token.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "electra"
    config_class = ElectraConfig
    pooled_tasks = ()

    def build_embeddings(self, config: EncoderConfig) -> nn.Module:
        """Return embeddings of embedding_size, and the map to hidden_size."""
        assert isinstance(config, ElectraConfig)
        return TextEmbeddings(config, embedding_size=config.embedding_size)

    def build_head(self, config: EncoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; the generator's and the classifier's have gelu whatever the config's activation is."""
        assert isinstance(config, ElectraConfig)
        if task == "masked_lm":
            return MaskedLmHead(
                config.hidden_size,
                config.vocab_size,
                activation_name="gelu",
                norm_eps=config.norm_eps,
                is_tied=config.tie_word_embeddings,
                embedding_size=config.embedding_size,
            )
        if task == "classification":
            return DenseHead(config.hidden_size, config.num_labels, dropout=config.head_dropout, activation_name="gelu")
        if task == "multiple_choice":
            return DenseHead(config.hidden_size, 1, dropout=config.summary_dropout, activation_name="gelu", drops_input=False)
        return super().build_head(config, task)
