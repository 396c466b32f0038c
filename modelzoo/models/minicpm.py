"""MiniCPM 1 and 2 (Hu et al., 2024): LLaMA with embeddings, residual branches and logits scaled.

The scales let the learning rates of a small model serve larger ones.
"""

from dataclasses import dataclass
from typing import ClassVar

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.llama import Llama, LlamaConfig

__all__ = ["MiniCPM", "MiniCPMConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniCPMConfig(LlamaConfig):
    """Sizes and options of a MiniCPM; the defaults are those of its own `configuration_minicpm.py`."""

    tie_word_embeddings: bool = True
    """Whether the language model's head is the token embedding."""
    embedding_scale: float = 1.0
    """Factor on the token embeddings; 12 in MiniCPM-2B."""
    depth_scale: float = 1.0
    """This over the square root of the number of layers is the factor on each sublayer's output; 1.4 in MiniCPM-2B."""
    base_size: int = 1
    """Hidden size of the small model that the learning rates are of: logits are divided by D over this; 256 in MiniCPM-2B."""

    def __post_init__(self) -> None:
        """Check the values."""
        LlamaConfig.__post_init__(self)
        if self.head_size * self.num_heads != self.hidden_size:
            raise ConfigError(
                f"head_size={self.head_size} of num_heads={self.num_heads} must add up to hidden_size={self.hidden_size} in MiniCPM"
            )
        for name in ("embedding_scale", "depth_scale", "base_size"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be greater than 0")


class MiniCPM(Llama):
    """MiniCPM for one of three tasks.

    transformers has no such class; the published checkpoints bring their own `modeling_minicpm.py`, which this equals. A classifier
    reads the hidden states as they are, as there.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "minicpm"
    config_class = MiniCPMConfig
    config: MiniCPMConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm", "classification")

    @property
    def residual_scale(self) -> float:
        """Factor on a sublayer's output before it is added."""
        return float(self.config.depth_scale / self.config.num_layers**0.5)

    @property
    def logit_scale(self) -> float:
        """Factor on the hidden states before the language model's head."""
        return self.config.base_size / self.config.hidden_size

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the token table, whose rows are scaled on the way in."""
        assert isinstance(config, MiniCPMConfig)
        return DecoderEmbeddings(
            config.vocab_size, config.hidden_size, scale=config.embedding_scale, padding_idx=config.pad_token_id
        )
