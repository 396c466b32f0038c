"""ViT (Dosovitskiy et al., 2021): a pre-norm encoder of an image's patches, with a class token in front."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import (
    Attention,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    Layout,
    SelfAttentionBlock,
    TransformerBlock,
    activation,
)
from modelzoo.models.heads import LinearHead, Pooler
from modelzoo.models.image_config import ImageConfig
from modelzoo.models.losses import cross_entropy
from modelzoo.models.model import Model, ModelOutput
from modelzoo.models.patch_embeddings import PatchEmbeddings
from modelzoo.models.targets import require_label_kind, targets

__all__ = ["ViT", "ViTConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig(ImageConfig):
    """Sizes and options of a ViT; the defaults are vit-base-patch16-224's."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width of an image, in pixels."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch, in pixels; what is left over at the right and the bottom is not seen."""
    pooler_size: int = 768
    """Width of the pooler's output."""
    pooler_activation: str = "tanh"
    """Of the pooler, by Hugging Face's name."""

    def __post_init__(self) -> None:
        """Check the values."""
        ImageConfig.__post_init__(self)
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            if len(value) != 2 or min(value) < 1:
                raise ConfigError(f"{name}={value} must be a height and a width, each at least 1")
        if self.image_size[0] < self.patch_size[0] or self.image_size[1] < self.patch_size[1]:
            raise ConfigError(f"patch_size={self.patch_size} is larger than image_size={self.image_size}")
        for name in ("num_channels", "pooler_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        activation(self.pooler_activation)

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size[0] // self.patch_size[0]) * (self.image_size[1] // self.patch_size[1])


class ViT(Model):
    """ViT for one of two tasks, equal to transformers' `ViTModel` and `ViTForImageClassification` in logits and gradients.

    It takes images of the config's size alone; positions are not interpolated.

    Args:
        config: Sizes and options.
        task: "base" or "classification".
    """

    family = "vit"
    config_class = ViTConfig
    config: ViTConfig
    tasks: ClassVar[tuple[Task, ...]] = ("base", "classification")

    def __init__(self, config: ViTConfig, task: Task = "base") -> None:
        super().__init__(config, task)
        size = config.hidden_size
        self.embeddings = PatchEmbeddings(
            size,
            num_channels=config.num_channels,
            patch_size=config.patch_size,
            num_patches=config.num_patches,
            dropout=config.hidden_dropout,
        )
        self.encoder = Encoder((_block(config) for _ in range(config.num_layers)), LayerNorm(size, config.norm_eps))
        is_base = task == "base"
        self.pooler = Pooler(size, config.pooler_size, activation_name=config.pooler_activation) if is_base else None
        self.head = None if is_base else LinearHead(size, config.num_labels)

    @property
    def max_length(self) -> int:
        """Tokens of an image: its patches and the class token."""
        return self.config.num_patches + 1

    def shard_units(self) -> list[nn.Module]:
        """Return the encoder's blocks in forward order."""
        return list(self.encoder.layers)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ModelOutput:
        """Run the model.

        Args:
            pixel_values: (B, num_channels, height, width) float, normalised as the checkpoint's image processor does.
            labels: "classification": (B,) int64; -100 is ignored.

        Returns:
            The loss where labels were given, and `logits` (B, num_labels); for "base" `last_hidden_state`
            (B, 1 + patches, D) and `pooler_output` (B, pooler_size).

        Raises:
            DataError: The images have another size, or a label is out of range.
        """
        require_label_kind(self.task, labels, None, None)
        self._check(pixel_values)
        hidden = self.embeddings(pixel_values.to(self.embeddings.weight.dtype))
        layout = Layout.dense(*hidden.shape[:2], device=hidden.device)
        if self.pooler is not None:
            hidden = self.encoder(hidden, layout)
            return ModelOutput(last_hidden_state=hidden, pooler_output=self.pooler(hidden[:, 0]))
        first = layout.first_rows()
        assert self.head is not None
        logits = self.head(first.spread(self.encoder(hidden, layout, selection=first)))
        if labels is None:
            return ModelOutput(logits=logits)
        wanted = targets(labels, layout, (len(logits),), self.config.num_labels)
        return ModelOutput(loss=cross_entropy(logits, wanted), logits=logits)

    def _check(self, pixels: Tensor) -> None:
        wanted = (self.config.num_channels, *self.config.image_size)
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != wanted:
            raise DataError(
                f"pixel_values must have shape (images, {', '.join(map(str, wanted))}), found {tuple(pixels.shape)}; use the "
                "image processor that belongs to this model"
            )
        if not pixels.is_floating_point():
            raise DataError(
                f"pixel_values must be floats, found {pixels.dtype}; use the image processor that belongs to this model"
            )


def _block(config: ViTConfig) -> TransformerBlock:
    attention = Attention(
        config.hidden_size,
        config.num_heads,
        bias=config.attention_bias,
        output_bias=True,
        dropout=config.attention_dropout,
    )
    feed_forward = FeedForward(config.hidden_size, config.intermediate_size, activation=config.activation)
    norms = [LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2)]
    return TransformerBlock(
        SelfAttentionBlock(attention, norms[0], dropout=config.hidden_dropout),
        FeedForwardBlock(feed_forward, norms[1], dropout=config.hidden_dropout),
    )
