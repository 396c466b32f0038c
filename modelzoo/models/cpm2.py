"""CPM-2 (Zhang et al., 2021): a T5 with a gated network, a head of its own, and maps scaled by their width."""

from dataclasses import dataclass
from typing import ClassVar

from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import Dropout, TransformerBlock
from modelzoo.models.cpm_decoder import CpmConfig, cpm_block
from modelzoo.models.model import Model
from modelzoo.models.t5 import T5
from modelzoo.models.t5_config import T5Config

__all__ = ["CPM2", "CPM2Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CPM2Config(T5Config):
    """Sizes and options of a CPM-2; the defaults are cpm2-large's."""

    vocab_size: int = 26240
    """Rows of the token embedding."""
    hidden_size: int = 4096
    """D."""
    head_size: int = 64
    """H."""
    intermediate_size: int = 10240
    """Width of the feed-forward network."""
    num_layers: int = 24
    """Blocks of the encoder."""
    num_decoder_layers: int = 24
    """Blocks of the decoder."""
    num_heads: int = 64
    """Attention heads of a block."""
    activation: str = "gelu"
    """Of the feed-forward network, by Hugging Face's name."""
    is_gated: bool = True
    """Whether the feed-forward network is gated."""
    dropout: float = 0.0
    """Probability of dropping a feature after a sublayer, or an attention weight."""
    length_scale: bool = True
    """Whether the products of every map and of the head, but not of the token table, are divided by the root of its width."""
    scale_decoder_outputs: bool = True
    """The same for the head alone, and always equal to `length_scale`."""
    scale_attention: bool = False
    """Whether scores are divided by sqrt(head_size)."""
    tie_word_embeddings: bool = False
    """Whether the head is the token embedding; CPM-2 has its own."""
    pad_token_id: int | None = 5
    """Id of the padding token."""
    eos_token_id: int = 7
    """Id of the token that ends a text."""
    decoder_start_token_id: int = 1
    """Id of the token that a decoder starts from."""

    def __post_init__(self) -> None:
        """Check the values."""
        T5Config.__post_init__(self)
        if self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings=True is not built for CPM-2, whose head is its own; leave it out")
        if self.scale_decoder_outputs != self.length_scale:
            raise ConfigError(
                f"scale_decoder_outputs={self.scale_decoder_outputs} must equal length_scale={self.length_scale}, which means both"
            )


class CPM2(T5):
    """CPM-2, as encoder and decoder or with a language model's head.

    Args:
        config: Sizes and options.
        task: "base" or "seq2seq_lm".
    """

    family = "cpm2"
    config_class = CPM2Config
    config: CPM2Config
    tasks: ClassVar[tuple[Task, ...]] = ("base", "seq2seq_lm")
    runs_in_float16 = True  # its maps are scaled by their width for that

    def __init__(self, config: CPM2Config, task: Task = "seq2seq_lm") -> None:
        super().__init__(config, task)
        self.dropout = Dropout(0.0)  # neither embeddings nor results are dropped

    def _block(self, config: T5Config, *, is_decoder: bool) -> TransformerBlock:
        assert isinstance(config, CPM2Config)
        shared = {name: getattr(config, name) for name in _SHARED}
        options = CpmConfig(**shared, hidden_dropout=config.dropout, attention_dropout=config.dropout)
        return cpm_block(options, is_causal=is_decoder, has_context=is_decoder)

    def init_weights(self, only: object = None) -> None:
        """Draw every matrix from one normal distribution; see `Model.init_weights`."""
        Model.init_weights(self, only)  # type: ignore[arg-type]  # same meaning, wider type


_SHARED = (
    "vocab_size", "hidden_size", "head_size", "num_layers", "num_heads", "intermediate_size", "activation", "is_gated", "norm_eps",
    "length_scale", "scale_attention", "pad_token_id",
)  # fmt: skip
