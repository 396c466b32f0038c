"""A tiny ViT folder, and folders of images to tell apart."""

from pathlib import Path

import numpy as np
import torch

from modelzoo.models.vit import ViT, ViTConfig

__all__ = ["image_folder", "vit_folder"]


def vit_folder(folder: Path) -> Path:
    """Write a ViT of 2 layers and width 16 for images of 16 x 16, with its image processor."""
    torch.manual_seed(0)
    config = ViTConfig(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, image_size=(16, 16), patch_size=(8, 8))
    ViT.from_config(config, "base").save_pretrained(folder)
    import transformers

    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def image_folder(folder: Path, count: int, seed: int = 0) -> Path:
    """Write images of two classes, dark ones and bright ones, of unequal sizes."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(low, low + 100, (20 + number, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder
