"""Qwen3 (Yang et al., 2025): LLaMA with a norm on each query and key head."""

from dataclasses import dataclass

from modelzoo.models.llama import Llama, LlamaConfig

__all__ = ["Qwen3", "Qwen3Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen3Config(LlamaConfig):
    """Sizes and options of a Qwen3; the defaults are transformers' own."""

    vocab_size: int = 151936
    """Rows of the token embedding."""
    intermediate_size: int = 22016
    """Width of the feed-forward network."""
    max_positions: int = 32768
    """The longest sequence, in tokens."""
    has_head_norms: bool = True
    """Whether each query and key head is normalised before it is rotated."""


class Qwen3(Llama):
    """Qwen3: LLaMA with a norm on each query and key head.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "qwen3"
    config_class = Qwen3Config
