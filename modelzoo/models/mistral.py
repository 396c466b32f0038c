"""Mistral (Jiang et al., 2023): LLaMA with a sliding window and grouped heads."""

from dataclasses import dataclass

from modelzoo.models.llama import Llama, LlamaConfig

__all__ = ["Mistral", "MistralConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MistralConfig(LlamaConfig):
    """Sizes and options of a Mistral; the defaults are Mistral-7B-v0.1's."""

    num_key_value_heads: int = 8
    """Key and value heads of a block."""
    intermediate_size: int = 14336
    """Width of the feed-forward network."""
    max_positions: int = 131072
    """The longest sequence, in tokens."""
    window: int | None = 4096
    """Tokens that every layer sees, itself included; None for all."""


class Mistral(Llama):
    """Mistral: LLaMA with a sliding window.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "mistral"
    config_class = MistralConfig
