"""What the configs of models for images have in common."""

import dataclasses
from dataclasses import dataclass

from modelzoo.models.encoder_parts import EncoderConfig

__all__ = ["ImageConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig(EncoderConfig):
    """Options of an encoder of patches, and the fields of texts, which an image does not have."""

    num_channels: int = 3
    """Colours of a pixel."""
    hidden_dropout: float = 0.0
    """Probability of dropping a feature after the embeddings, and where a family says so after every sublayer."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight."""
    attention_bias: bool = True
    """Whether query, key and value have a bias."""
    vocab_size: int = dataclasses.field(default=1, init=False)
    """An image has no token ids."""
    pad_token_id: int | None = dataclasses.field(default=None, init=False)
    """An image has no padding."""
    tie_word_embeddings: bool = dataclasses.field(default=False, init=False)
    """There is no token table."""
    classifier_dropout: float | None = dataclasses.field(default=0.0, init=False)
    """The classifier has none."""
    max_positions: int = dataclasses.field(default=1, init=False)
    """Positions follow from the sizes of image and patch."""
