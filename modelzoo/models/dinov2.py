"""DINOv2 (Oquab et al., 2023): a ViT whose sublayers have a learned scale, for images of any size."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import (
    Attention,
    Dropout,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    Layout,
    SelfAttentionBlock,
    TransformerBlock,
)
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.models.heads import LinearHead
from modelzoo.models.image_config import ImageConfig
from modelzoo.models.losses import cross_entropy
from modelzoo.models.model import Model, ModelOutput
from modelzoo.models.targets import require_label_kind, targets

__all__ = ["Dinov2", "Dinov2Config", "Dinov2Embeddings", "LayerScale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dinov2Config(ImageConfig):
    """Sizes and options of a DINOv2; the defaults are dinov2-base's with positions for images of 224 pixels."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width, in pixels and equal, of the images that the table of positions is for."""
    patch_size: tuple[int, int] = (14, 14)
    """Height and width of a patch, in pixels and equal; what is left over at the right and the bottom is not seen."""
    width_ratio: int = 4
    """Width of the feed-forward network, in hidden sizes; see `feed_forward_size`."""
    is_gated: bool = False
    """Whether the feed-forward network is gated by SiLU (dinov2-giant)."""
    layer_scale: float = 1.0
    """First value of every sublayer's scales."""
    has_mask_token: bool = True
    """Whether there is an embedding that stands for hidden patches in pretraining."""
    norm_eps: float = 1e-6
    """Added to the variance in every norm."""
    intermediate_size: int = dataclasses.field(default=1, init=False)
    """It follows from other fields: see `feed_forward_size`."""

    def __post_init__(self) -> None:
        """Check the values."""
        ImageConfig.__post_init__(self)
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            if len(value) != 2 or min(value) < 1 or value[0] != value[1]:
                raise ConfigError(f"{name}={value} must be a height and an equal width, each at least 1: positions form a square")
        if self.table_size < 1:
            raise ConfigError(f"patch_size={self.patch_size} is larger than image_size={self.image_size}")
        for name in ("num_channels", "width_ratio"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")

    @property
    def table_size(self) -> int:
        """Patches in a row, and in a column, of the table of positions."""
        return self.image_size[0] // self.patch_size[0]

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward network; a gated one has two thirds of it, rounded up to eights."""
        width = self.hidden_size * self.width_ratio
        return (int(width * 2 / 3) + 7) // 8 * 8 if self.is_gated else width


class LayerScale(nn.Module):
    """A sublayer whose output's features are multiplied by learned scales (Touvron et al., 2021, "Going deeper").

    Args:
        inner: The sublayer.
        hidden_size: D.
        value: What the scales start from.
    """

    def __init__(self, inner: nn.Module, hidden_size: int, value: float) -> None:
        super().__init__()
        self.inner = inner
        self.value = value
        self.weight = nn.Parameter(torch.empty(hidden_size))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Set the scales to their first value; `std` has no part in it."""
        nn.init.constant_(self.weight, self.value)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Run the sublayer and scale.

        Args:
            *inputs: The sublayer's own.
            **options: The sublayer's own.

        Returns:
            (..., D) float.
        """
        scaled: Tensor = self.inner(*inputs, **options) * self.weight
        return scaled

    def extra_repr(self) -> str:
        """What `print` shows of this module, beside its parts."""
        return f"value={self.value:g}"


class Dinov2Embeddings(nn.Module):
    """A linear map of every patch, a class token in front, and positions stretched to the image's size; then dropout.

    Args:
        config: Sizes.
    """

    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        size, self.patch_size, self.table_size = config.hidden_size, config.patch_size, config.table_size
        self.weight = nn.Parameter(torch.empty(size, config.num_channels, *config.patch_size))
        self.bias = nn.Parameter(torch.empty(size))
        self.class_token = nn.Parameter(torch.empty(1, 1, size))
        self.mask_token = nn.Parameter(torch.empty(1, size)) if config.has_mask_token else None
        self.position = nn.Parameter(torch.empty(1, config.table_size**2 + 1, size))
        self.dropout = Dropout(config.hidden_dropout)
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill from N(0, std²); bias and mask token with zeros."""
        for parameter in (self.weight, self.class_token, self.position):
            nn.init.normal_(parameter, std=std)
        for parameter in (self.bias, *([] if self.mask_token is None else [self.mask_token])):
            nn.init.zeros_(parameter)

    def positions(self, rows: int, columns: int) -> Tensor:
        """Return the class token's position and those of a grid of patches.

        A grid of another size gets the table's positions in between, by bicubic interpolation in float32.

        Args:
            rows: Patches from top to bottom.
            columns: Patches from left to right.

        Returns:
            (1, 1 + rows * columns, D) float.
        """
        if (rows, columns) == (self.table_size, self.table_size):
            return self.position
        first, rest = self.position[:, :1], self.position[:, 1:]
        table = rest.unflatten(1, (self.table_size, self.table_size)).permute(0, 3, 1, 2).float()
        grid = F.interpolate(table, size=(rows, columns), mode="bicubic", align_corners=False).to(rest.dtype)
        return torch.cat([first, grid.flatten(2).transpose(1, 2)], dim=1)

    def forward(self, pixels: Tensor, hidden_patches: Tensor | None = None) -> Tensor:
        """Embed.

        Args:
            pixels: (B, channels, height, width) float, at least a patch high and wide.
            hidden_patches: (B, patches) bool of the patches whose place the mask token takes; None for none.

        Returns:
            (B, 1 + patches, D) float: the class token, then the patches row by row.
        """
        grid = F.conv2d(pixels, self.weight, self.bias, stride=self.patch_size)
        patches = grid.flatten(2).transpose(1, 2)
        if hidden_patches is not None:
            assert self.mask_token is not None
            patches = torch.where(hidden_patches.unsqueeze(-1), self.mask_token, patches)
        tokens = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1)
        embedded: Tensor = self.dropout(tokens + self.positions(grid.shape[2], grid.shape[3]))
        return embedded

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return f"{self.weight.shape[1]} channels, patches of {self.patch_size}, {self.position.shape[1]} positions"


class Dinov2(Model):
    """DINOv2 for one of two tasks, equal to transformers' `Dinov2Model` and `Dinov2ForImageClassification` in logits and gradients.

    Stochastic depth and feature maps of inner layers (`Dinov2Backbone`) are not built.

    Args:
        config: Sizes and options.
        task: "base" or "classification", which reads the class token and the mean of the patches.
    """

    family = "dinov2"
    config_class = Dinov2Config
    config: Dinov2Config
    tasks: ClassVar[tuple[Task, ...]] = ("base", "classification")

    def __init__(self, config: Dinov2Config, task: Task = "base") -> None:
        super().__init__(config, task)
        self.embeddings = Dinov2Embeddings(config)
        norm = LayerNorm(config.hidden_size, config.norm_eps)
        self.encoder = Encoder((_block(config) for _ in range(config.num_layers)), norm)
        self.head = None if task == "base" else LinearHead(2 * config.hidden_size, config.num_labels)

    @property
    def max_length(self) -> int:
        """Tokens of an image of the table's size: its patches and the class token."""
        return self.config.table_size**2 + 1

    def shard_units(self) -> list[nn.Module]:
        """Return the encoder's blocks in forward order."""
        return list(self.encoder.layers)

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None, labels: Tensor | None = None) -> ModelOutput:
        """Run the model.

        Args:
            pixel_values: (B, num_channels, height, width) float of any size from a patch on, normalised as the checkpoint's image
                processor does.
            bool_masked_pos: "base": (B, patches) bool of the patches that are hidden; None for none.
            labels: "classification": (B,) int64; -100 is ignored.

        Returns:
            The loss where labels were given, and `logits` (B, num_labels); for "base" `last_hidden_state`
            (B, 1 + patches, D) and `pooler_output` (B, D), the class token's.

        Raises:
            DataError: The images or the hidden patches have a wrong form, or a label is out of range.
        """
        require_label_kind(self.task, labels, None, None)
        self._check(pixel_values, bool_masked_pos)
        hidden = self.embeddings(pixel_values.to(self.embeddings.weight.dtype), bool_masked_pos)
        layout = Layout.dense(*hidden.shape[:2], device=hidden.device)
        hidden = self.encoder(hidden, layout)
        if self.head is None:
            return ModelOutput(last_hidden_state=hidden, pooler_output=hidden[:, 0])
        logits = self.head(torch.cat([hidden[:, 0], hidden[:, 1:].mean(1)], dim=-1))
        if labels is None:
            return ModelOutput(logits=logits)
        wanted = targets(labels, layout, (len(logits),), self.config.num_labels)
        return ModelOutput(loss=cross_entropy(logits, wanted), logits=logits)

    def _check(self, pixels: Tensor, hidden_patches: Tensor | None) -> None:
        config = self.config
        if pixels.dim() != 4 or pixels.shape[1] != config.num_channels or min(pixels.shape[2:]) < config.patch_size[0]:
            raise DataError(
                f"pixel_values must have shape (images, {config.num_channels}, height, width) and hold at least one patch of "
                f"{config.patch_size[0]} x {config.patch_size[1]}, found {tuple(pixels.shape)}; use the image processor that "
                "belongs to this model"
            )
        if not pixels.is_floating_point():
            raise DataError(
                f"pixel_values must be floats, found {pixels.dtype}; use the image processor that belongs to this model"
            )
        if hidden_patches is None:
            return
        if self.task != "base" or not config.has_mask_token:
            reason = f"task={self.task!r}" if self.task != "base" else "has_mask_token=False"
            raise DataError(f"bool_masked_pos was given to a model with {reason}; leave it out")
        wanted = (len(pixels), (pixels.shape[2] // config.patch_size[0]) * (pixels.shape[3] // config.patch_size[1]))
        if hidden_patches.shape != wanted or hidden_patches.dtype != torch.bool:
            found = f"{hidden_patches.dtype} {tuple(hidden_patches.shape)}"
            raise DataError(f"bool_masked_pos must be torch.bool {wanted}, a value a patch, found {found}")


def _block(config: Dinov2Config) -> TransformerBlock:
    size = config.hidden_size
    attention = Attention(size, config.num_heads, bias=config.attention_bias, output_bias=True, dropout=config.attention_dropout)
    feed_forward = FeedForward(
        size,
        config.feed_forward_size,
        activation="silu" if config.is_gated else config.activation,
        is_gated=config.is_gated,
    )
    scaled = [LayerScale(sublayer, size, config.layer_scale) for sublayer in (attention, feed_forward)]
    norms = [LayerNorm(size, config.norm_eps) for _ in range(2)]
    return TransformerBlock(SelfAttentionBlock(scaled[0], norms[0]), FeedForwardBlock(scaled[1], norms[1]))
