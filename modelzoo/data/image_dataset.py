"""Images with labels as a data set: paths in memory, pixels when a batch needs them."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from modelzoo.data.columns import show
from modelzoo.data.labels import LabelTable
from modelzoo.data.limits import DataReport
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.samples import Samples
from modelzoo.data.tasks import Item
from modelzoo.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "ImageDataset", "is_image_folder", "read_image_folder"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""What the names of images end with."""


def is_image_folder(folder: Path) -> bool:
    """Whether a folder holds folders, one a class, with images."""
    return folder.is_dir() and any(_images(each) for each in sorted(folder.iterdir()) if each.is_dir())


def read_image_folder(folder: Path, *, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Return the images of a folder that has one folder a class.

    Args:
        folder: Of the classes, whose folders' names are the labels.
        max_rows: Only so many images, taken from the classes in turn; None for all.

    Returns:
        Rows with `image`, a path, and `label`: classes in the order of their names, images in that of theirs.

    Raises:
        DataError: If there is no image.
    """
    classes = {each.name: _images(each) for each in sorted(folder.iterdir()) if each.is_dir()}
    rows = [{"image": str(path), "label": name} for name, paths in classes.items() for path in paths]
    if not rows:
        raise DataError(f"{folder}: expected a folder a class with images ({', '.join(IMAGE_SUFFIXES)}), found none")
    if max_rows is not None and max_rows < len(rows):
        turns = sorted((number, name) for name, paths in classes.items() for number in range(len(paths)))[:max_rows]
        rows = [{"image": str(classes[name][number]), "label": name} for number, name in turns]
    return rows


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


class ImageDataset(Samples):
    """Images with labels. What stays in memory is paths; an image is decoded, by Pillow, when a batch needs it.

    Args:
        rows: With `image`, a path, and `label`.
        label_names: By id.
        processor: From images to pixels, as `load_image_processor` returns it.
        tokens: Of an image: its patches, and what the model adds.
        source: What the rows are called in errors.
        labelled: False ignores labels (prediction).

    Raises:
        DataError: If an image is missing or cannot be decoded, or a label has no name; it lists the rows, counted from 1.
    """

    has_texts = False

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        label_names: Sequence[str],
        processor: Callable[[Any], Tensor],
        tokens: int,
        *,
        source: str = "data",
        labelled: bool = True,
    ) -> None:
        count = len(rows)
        super().__init__(
            task="classification",
            source=source,
            rows=list(range(count)),
            lengths=[tokens] * count,
            label_names=label_names,
            is_labelled=labelled,
        )
        self._processor = processor
        self._paths = [Path(str(row.get("image"))) for row in rows]
        self._labels: list[int] | None = None
        checks = RowChecks(source)
        with checks:
            self._labels = _label_ids(rows, label_names, source) if labelled else None
        with checks:
            self._check_images()
        checks.finish()
        counts = Counter(self._labels or ())
        self.report = DataReport(
            rows=count,
            items=count,
            tokens=sum(self.lengths),
            longest=tokens,
            num_targets=counts.total(),
            label_counts={self.label_names[label]: counts[label] for label in sorted(counts)},
        )
        self.fingerprint = self._image_fingerprint()

    def item(self, index: int, *, epoch: int = 0) -> Item:
        """Return one sample: pixel_values, a (channels, height, width) float32 tensor, and labels, an int."""
        from PIL import Image

        with Image.open(self._paths[index]) as image:
            item: Item = {"pixel_values": self._processor(image.convert("RGB"))[0]}
        return item if self._labels is None else {**item, "labels": self._labels[index]}

    def original(self, index: int) -> tuple[Path, int, int, str]:
        """Return the file of a sample, the image's width and height in pixels, and Pillow's name of its mode.

        Args:
            index: Number of the sample, 0 <= index < len(self).
        """
        from PIL import Image

        with Image.open(self._paths[index]) as image:
            return self._paths[index], image.width, image.height, str(image.mode)

    def num_targets(self, index: int, *, epoch: int = 0) -> int:
        """Return 1, or 0 without labels."""
        return int(self._labels is not None)

    def _check_images(self) -> None:
        """Open every image's head, so that a broken file is found before the run."""
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise DataError(
                f"{self.source}: images need Pillow, which is not installed: pip install 'modelzoo-hub[images]'"
            ) from error

        problems = []
        for number, path in enumerate(self._paths, start=1):
            try:
                with Image.open(path) as image:
                    image.verify()
            except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
                problems.append(f"row {number}: expected an image in column 'image', found {path}: {error}")
        if problems:
            raise problem_rows(self.source, problems, "repair or remove it")

    def _image_fingerprint(self) -> str:
        """Return the sha256 of names, sizes in bytes, and labels: contents are not read."""
        names = [(f"{path.parent.name}/{path.name}", path.stat().st_size) for path in self._paths]
        return hashlib.sha256(json.dumps(["modelzoo.data.images 1", self.label_names, self._labels, names]).encode()).hexdigest()


def _label_ids(rows: Sequence[Mapping[str, Any]], names: Sequence[str], source: str) -> list[int]:
    table, ids, problems = LabelTable(names), [], []
    for number, row in enumerate(rows, start=1):
        try:
            ids.append(table.id(row.get("label")))
        except ValueError as error:
            problems.append(f"row {number}: {error} ({show(str(row.get('image')))})")
    if problems:
        raise problem_rows(source, problems, "correct the label, or set data.label_names to all labels")
    return ids
