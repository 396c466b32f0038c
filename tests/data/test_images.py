import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from modelzoo.data.images import load_image_processor
from modelzoo.errors import DataError

pytest.importorskip("PIL")


def test_pixels_are_those_of_transformers_image_processor(tmp_path: Path) -> None:
    theirs = transformers.ViTImageProcessorPil(size={"height": 12, "width": 16})
    theirs.save_pretrained(tmp_path)
    images = [np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8) for seed in range(2)]
    pixels = load_image_processor(tmp_path)
    assert pixels(images).shape == (2, 3, 12, 16)
    assert torch.equal(pixels(images), theirs(images, return_tensors="pt")["pixel_values"])
    assert torch.equal(pixels(images[0]), pixels(images)[:1])


def test_a_missing_or_broken_processor_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"preprocessor_config.json: expected the settings of an image processor, found no such"):
        load_image_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
    with pytest.raises(DataError, match=r"preprocessor_config.json: the image processor cannot be built"):
        load_image_processor(tmp_path)


def test_what_other_libraries_say_as_they_are_imported_stays_out_of_the_output(tmp_path: Path) -> None:
    """transformers imports torchao where it is installed, which complains of its own files."""
    transformers.ViTImageProcessorPil(size={"height": 12, "width": 16}).save_pretrained(tmp_path)
    asked = f"from modelzoo.data.images import load_image_processor; load_image_processor({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", asked], capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "torchao" in line or "pytree" in line] == []
