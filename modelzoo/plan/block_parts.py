"""What a block of a model is made of: sizes and options of each part, as far as its costs depend on them."""

from dataclasses import dataclass

__all__ = ["AttentionPart", "FeedForwardPart", "MixturePart", "NormPart", "Part"]


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """An attention layer; sizes are of one tensor rank's part where that is said."""

    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    dropout: float
    is_causal: bool
    is_cross: bool
    """Whether keys and values come from another stack."""
    has_rotary: bool
    has_bias: bool
    """Whether a learned bias is added to the scores."""
    has_head_norms: bool
    output_dropout: float
    """Of what is added to the residual stream."""
    window: int | None


@dataclass(frozen=True, slots=True)
class FeedForwardPart:
    """A feed-forward network."""

    hidden_size: int
    intermediate_size: int
    activation: str
    is_gated: bool
    dropout: float
    output_dropout: float
    shares_input: bool
    """Whether an attention layer has kept the same input."""


@dataclass(frozen=True, slots=True)
class MixturePart:
    """A mixture of experts."""

    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    output_dropout: float


@dataclass(frozen=True, slots=True)
class NormPart:
    """A norm over `size` features."""

    size: int
    is_rms: bool


Part = AttentionPart | FeedForwardPart | MixturePart | NormPart
