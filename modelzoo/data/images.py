"""Images for models that read pixels: what a checkpoint's own image processor makes of them."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from modelzoo.errors import DataError

__all__ = ["load_image_processor", "processed_size"]


def load_image_processor(folder: str | os.PathLike[str]) -> Callable[[Any], Tensor]:
    """Return a function from images to `pixel_values`, as the folder's preprocessor_config.json says.

    The work is transformers' own (`AutoImageProcessor`), which is imported here and not before, and needs Pillow.

    Args:
        folder: A model's folder.

    Returns:
        A function that takes an image or a list of images (PIL or arrays of height, width, channels) and returns a
        (images, channels, height, width) float tensor.

    Raises:
        DataError: There is no preprocessor_config.json, or it cannot be used.
    """
    path = Path(folder) / "preprocessor_config.json"
    if not path.is_file():
        raise DataError(f"{path}: expected the settings of an image processor, found no such file; copy it from the checkpoint")
    try:
        with _without_notes():
            from transformers import AutoImageProcessor

            processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"{path}: the image processor cannot be built: {error}") from error

    def pixels(images: Any) -> Tensor:
        made: Mapping[str, Tensor] = processor(images, return_tensors="pt")
        return made["pixel_values"]

    return pixels


def processed_size(processor: Callable[[Any], Tensor], file: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return height and width of what a processor makes of an image; None for a file that cannot be read as one.

    Args:
        processor: Of `load_image_processor`.
        file: The image.
    """
    try:
        from PIL import Image

        with Image.open(file) as image:
            _, _, height, width = processor(image.convert("RGB")).shape
    except (ImportError, OSError, ValueError, SyntaxError):  # a data set of images names all that cannot be read
        return None
    return height, width


@contextmanager
def _without_notes() -> Iterator[None]:
    """Keep out what torchao, where it is installed, says of its own files as transformers imports it."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
