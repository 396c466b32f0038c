"""Runs on images: folders of them, or rows with their paths, for a model that reads pixels."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from modelzoo import hub
from modelzoo.config import RunSettings
from modelzoo.data import read_rows
from modelzoo.data.image_dataset import ImageDataset, is_image_folder, read_image_folder
from modelzoo.data.images import load_image_processor, processed_size
from modelzoo.data.labels import collect_names
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.auto import model_class
from modelzoo.models.image_config import ImageConfig
from modelzoo.models.model import Model

__all__ = ["given_images", "image_dataset", "image_label_names", "image_rows", "reads_images"]

Rows = Sequence[Mapping[str, Any]]

_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
_COLUMNS = ("image", "label")


def reads_images(folder: Path) -> bool:
    """Whether the model of a Hugging Face folder reads pixels."""
    kind = hub.read_config(folder).get("model_type")
    return isinstance(kind, str) and issubclass(model_class(kind).config_class, ImageConfig)


def image_rows(settings: RunSettings, split: str) -> list[dict[str, Any]] | None:
    """Return the images of a split; None where the settings name none.

    Args:
        settings: data.train, data.validation and data.test: each a folder with a folder a class, or a file of rows with image (a
            path, beside that file) and label; or data.name: a folder with such folders.
        split: train, validation or test.

    Raises:
        DataError: There is no image.
        ConfigError: A setting is for texts alone.
    """
    data = settings.data
    if data.form is not None or data.columns:
        raise ConfigError("data.form and data.columns: a model for images has rows with image and label; leave them out")
    place = getattr(data, split)
    if place is not None:
        return given_images(Path(place), max_rows=data.max_rows)
    if data.name is None or (split == "test" and _folder_of(Path(data.name), split) is None):
        return None
    return given_images(Path(data.name), split=split, max_rows=data.max_rows)


def _folder_of(base: Path, split: str) -> Path | None:
    return next((base / name for name in _FOLDERS.get(split, (split,)) if is_image_folder(base / name)), None)


def given_images(place: Path, *, split: str | None = None, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Return the images of a folder with a folder a class, or of a file of rows.

    Args:
        place: The folder, one that holds such a folder for each split, or the file.
        split: train, validation or test, where the folder holds one for each.
        max_rows: Only so many; None for all.

    Raises:
        DataError: There is no image, or a row lacks its path.
    """
    if split is not None and not is_image_folder(place):
        found = _folder_of(place, split)
        if found is None:
            wanted = " or ".join(_FOLDERS.get(split, (split,)))
            raise DataError(f"{place}: expected {wanted}, a folder with a folder of images a class, found none")
        place = found
    if is_image_folder(place):
        return read_image_folder(place, max_rows=max_rows)
    rows = read_rows(place, max_rows=max_rows)
    if "image" not in rows[0]:
        raise DataError(
            f"{place}: expected columns {' and '.join(_COLUMNS)}, found {', '.join(rows[0])}; give each row its image's path"
        )
    return [{**row, "image": str(place.parent / str(row["image"]))} for row in rows]


def image_label_names(settings: RunSettings, rows: Rows) -> tuple[str, ...]:
    """Return the label names by id: the settings', or those of the training images."""
    if settings.data.label_names is not None:
        return tuple(settings.data.label_names)
    try:
        return collect_names([row.get("label") for row in rows], len(rows))
    except ValueError as error:
        raise DataError(f"data.train: {error}") from error


def image_dataset(rows: Rows, model: Model, folder: Path, *, source: str, labelled: bool = True) -> ImageDataset:
    """Return rows as a data set for a model.

    Args:
        rows: With image and label.
        model: It gives the labels, and with its image processor the tokens of an image.
        folder: Of the model, with its preprocessor_config.json.
        source: What the rows are called in errors.
        labelled: False ignores labels.

    Raises:
        DataError: As `ImageDataset`, or there is no preprocessor_config.json.
    """
    names = model.config.label_names or tuple(f"LABEL_{number}" for number in range(model.config.num_labels))
    processor = load_image_processor(folder)
    return ImageDataset(rows, names, processor, _tokens(rows, model, processor), source=source, labelled=labelled)


def _tokens(rows: Rows, model: Model, processor: Callable[[Any], Tensor]) -> int:
    """Return the tokens of an image as the processor makes the first one; DINOv2 takes other sizes than its config's."""
    config: Any = model.config
    made = processed_size(processor, str(rows[0].get("image")))
    if made is None:
        return model.max_length
    patches = [
        math.prod(int(size) // int(patch) for size, patch in zip(sizes, config.patch_size, strict=True))
        for sizes in (made, config.image_size)
    ]
    return model.max_length + patches[0] - patches[1]
