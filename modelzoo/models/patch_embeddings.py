"""Patches of an image as tokens (ViT)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers import Dropout
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built

__all__ = ["PatchEmbeddings"]


class PatchEmbeddings(nn.Module):
    """A linear map of every patch, which is a convolution whose stride is its size; a class token in front; positions; dropout.

    Args:
        hidden_size: D.
        num_channels: Colours of a pixel.
        patch_size: Height and width of a patch, in pixels.
        num_patches: Of an image.
        dropout: Probability of dropping a feature.
    """

    def __init__(
        self, hidden_size: int, *, num_channels: int, patch_size: tuple[int, int], num_patches: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(hidden_size, num_channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.class_token = nn.Parameter(torch.empty(1, 1, hidden_size))
        self.position = nn.Parameter(torch.empty(1, num_patches + 1, hidden_size))
        self.dropout = Dropout(dropout)
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill all from N(0, std²) and the bias with zeros."""
        for parameter in (self.weight, self.class_token, self.position):
            nn.init.normal_(parameter, std=std)
        nn.init.zeros_(self.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed.

        Args:
            pixels: (B, channels, height, width) float.

        Returns:
            (B, 1 + patches, D) float: the class token, then the patches row by row.
        """
        patches = F.conv2d(pixels, self.weight, self.bias, stride=self.patch_size).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1)
        embedded: Tensor = self.dropout(tokens + self.position)
        return embedded

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return f"{self.weight.shape[1]} channels, patches of {self.patch_size}, {self.position.shape[1]} positions"
