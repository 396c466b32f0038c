"""Rows of images as the model will see them: the file, its size, its label, and what its pixels have become."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelzoo.cli.console import say
from modelzoo.quantities import readable_size

if TYPE_CHECKING:
    from modelzoo.data.image_dataset import ImageDataset

__all__ = ["say_images", "view_images"]


def view_images(dataset: "ImageDataset", chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Return some images.

    Args:
        dataset: Of the training split.
        chosen: Their numbers.

    Returns:
        Each with row (from 1), file, bytes, width, height, mode, label, and pixels: shape, least, mean, deviation and most of
        what the image processor makes of it.
    """
    found = []
    for index in chosen:
        (path, width, height, mode), item = dataset.original(index), dataset.item(index)
        pixels = item["pixel_values"]
        found.append(
            {
                "row": index + 1,
                "file": str(path),
                "bytes": path.stat().st_size,
                "width": width,
                "height": height,
                "mode": mode,
                "label": dataset.label_names[item["labels"]] if "labels" in item else None,
                "pixels": {
                    "shape": list(pixels.shape),
                    "least": float(pixels.min()),
                    "mean": float(pixels.mean()),
                    "deviation": float(pixels.std()),
                    "most": float(pixels.max()),
                },
            }
        )
    return found


def say_images(views: list[dict[str, Any]]) -> None:
    """Write images as two lines each."""
    for view in views:
        pixels = view["pixels"]
        size = f"{view['width']} x {view['height']} {view['mode']}, {readable_size(view['bytes'])}"
        say(f"row {view['row']} · {view['file']} · {size} · label {view['label']}")
        shape = " x ".join(map(str, pixels["shape"]))
        spread = f"{pixels['least']:.3g} to {pixels['most']:.3g}, mean {pixels['mean']:.3g}, deviation {pixels['deviation']:.3g}"
        say(f" pixel_values {shape} (channels, height, width), {spread}\n")
