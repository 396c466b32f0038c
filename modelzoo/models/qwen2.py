"""Qwen2 (Yang et al., 2024): LLaMA with biases on query, key and value."""

from dataclasses import dataclass

from modelzoo.models.llama import Llama, LlamaConfig

__all__ = ["Qwen2", "Qwen2Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen2Config(LlamaConfig):
    """Sizes and options of a Qwen2; the defaults are transformers' own."""

    vocab_size: int = 151936
    """Rows of the token embedding."""
    intermediate_size: int = 22016
    """Width of the feed-forward network."""
    max_positions: int = 32768
    """The longest sequence, in tokens."""
    attention_bias: bool = True
    """Whether query, key and value have a bias."""


class Qwen2(Llama):
    """Qwen2: LLaMA with biases on query, key and value.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "qwen2"
    config_class = Qwen2Config
