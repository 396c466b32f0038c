"""Runs on folders of images: pixels and losses are transformers', on one process and on two; broken images are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distributed import run_distributed
from tiny_images import image_folder, vit_folder

from modelzoo.config import RunSettings
from modelzoo.data import BatchStream
from modelzoo.errors import ConfigError, DataError
from modelzoo.report import read_records
from modelzoo.training import SilentProgress, evaluate, predict, resume, train

Image = pytest.importorskip("PIL.Image")


def settings_for(place: Path, **changes: Any) -> RunSettings:
    if not (place / "model").exists():
        vit_folder(place / "model")
        image_folder(place / "images" / "train", 6)
        image_folder(place / "images" / "val", 3, seed=1)
    values: dict[str, Any] = {
        "recipe": "images",
        "model": {"name": str(place / "model"), "task": "classification"},
        "data": {"name": str(place / "images")},
        "train": {"epochs": 2.0, "batch_size": 4, "seed": 3},
        "optimizer": {"lr": 1e-2},
        "output": {"folder": str(place / "runs")},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values.setdefault(section, {})[name] = value
    return RunSettings.model_validate(values)


def start(folder: str, name: str) -> None:
    train(settings_for(Path(folder), output__name=name), progress=SilentProgress())


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_records(run / "metrics.jsonl") if "loss" in record]


def test_a_run_learns_is_evaluated_and_predicts(tmp_path: Path) -> None:
    result = train(settings_for(tmp_path, train__epochs=6.0), progress=SilentProgress())
    assert result.best_metric == 1.0
    assert result.majority == 0.5
    assert evaluate(result.folder)["accuracy"] == 1.0
    asked = [{"image": str(tmp_path / "images" / "val" / name / "1.png")} for name in ("dark", "bright")]
    assert [found["label"] for found in predict(result.folder, asked)] == ["dark", "bright"]
    folder = tmp_path / "images" / "val"
    assert [found["label"] for found in predict(result.folder, folder)] == ["bright"] * 3 + ["dark"] * 3
    theirs = transformers.AutoModelForImageClassification.from_pretrained(result.folder / "final")
    assert theirs.config.id2label == {0: "bright", 1: "dark"}
    assert (result.folder / "final" / "preprocessor_config.json").is_file()


def test_steps_are_those_of_transformers(tmp_path: Path) -> None:
    from modelzoo.runtime import seed_everything
    from modelzoo.training.preparation import prepare

    settings = settings_for(
        tmp_path, schedule__name="constant", optimizer__weight_decay=0.0, train__clip_norm=None, optimizer__lr=1e-3
    )
    prepared = prepare(settings)
    seed_everything(settings.train.seed)
    prepared.pretrained.load(None).save_pretrained(tmp_path / "start")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "start", attn_implementation="eager").train()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "model")
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.0)
    files = sorted((tmp_path / "images" / "train").glob("*/*.png"))
    wanted = []
    stream = BatchStream(prepared.train.lengths, batch_size=4, seed=settings.train.seed)
    for _ in range(6):
        chosen = next(stream)
        pixels = processor([Image.open(files[index]).convert("RGB") for index in chosen], return_tensors="pt")["pixel_values"]
        labels = torch.tensor([int(files[index].parent.name == "dark") for index in chosen])
        loss = theirs(pixel_values=pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.append(float(loss.detach()))
    assert losses(Path(train(settings, progress=SilentProgress()).folder)) == pytest.approx(wanted, abs=1e-5)


def test_an_image_has_the_tokens_of_what_its_processor_makes(tmp_path: Path) -> None:
    """DINOv2's published configs say images of 518 pixels, and their processors make 224: 257 tokens, not 1,370."""
    from modelzoo.models.dinov2 import Dinov2, Dinov2Config
    from modelzoo.training.preparation import prepare

    sizes = {"image_size": (56, 56), "patch_size": (14, 14)}
    config = Dinov2Config(hidden_size=16, num_layers=2, num_heads=2, width_ratio=2, **sizes)
    Dinov2.from_config(config, "base").save_pretrained(tmp_path / "model")
    transformers.ViTImageProcessorPil(size={"height": 28, "width": 42}).save_pretrained(tmp_path / "model")
    image_folder(tmp_path / "images" / "train", 6)
    image_folder(tmp_path / "images" / "val", 3, seed=1)
    prepared = prepare(settings_for(tmp_path))
    assert set(prepared.train.lengths) == {2 * 3 + 1}
    assert prepared.train.report.longest == 7


def test_two_ranks_and_a_resumed_run_are_as_one_process(tmp_path: Path) -> None:
    start(str(tmp_path), "one")
    run_distributed(start, 2, str(tmp_path), "two")
    one = losses(tmp_path / "runs" / "one-001")
    assert losses(tmp_path / "runs" / "two-001") == pytest.approx(one, abs=1e-6)
    assert resume(tmp_path / "runs" / "one-001", progress=SilentProgress()).stopped == "finished"


def test_rows_may_name_images_beside_their_file(tmp_path: Path) -> None:
    settings_for(tmp_path)
    rows = [{"image": f"images/train/{name}/{number}.png", "label": name} for name in ("dark", "bright") for number in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = train(settings_for(tmp_path, data__name=None, data__train=str(tmp_path / "rows.jsonl")), progress=SilentProgress())
    assert result.stopped == "finished"


def test_broken_images_and_wrong_folders_are_refused_before_the_run(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    broken = tmp_path / "images" / "train" / "dark" / "2.png"
    broken.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"row 9: expected an image in column 'image', found .*dark/2.png"):
        train(settings, progress=SilentProgress())
    with pytest.raises(DataError, match="expected train or training, a folder with a folder of images a class, found none"):
        train(settings_for(tmp_path, data__name=str(tmp_path / "model")), progress=SilentProgress())
    with pytest.raises(ConfigError, match=r"data\.form and data\.columns: a model for images has rows with image and label"):
        train(settings_for(tmp_path, data__columns={"text": "image"}), progress=SilentProgress())
    assert not (tmp_path / "runs").exists()
