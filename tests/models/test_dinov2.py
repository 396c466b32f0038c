"""DINOv2 beyond its row of data: images of any size, hidden patches, and what is refused."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.dinov2 import Dinov2, Dinov2Config, LayerScale

SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "width_ratio": 2, "image_size": (16, 16), "patch_size": (4, 4)}


def both(folder: Path, **options: object) -> tuple[transformers.Dinov2Model, Dinov2]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    theirs = transformers.Dinov2Model(transformers.Dinov2Config(**sizes, **options)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(folder)
    return theirs, modelzoo.from_pretrained(folder)


def test_the_defaults_are_those_of_transformers() -> None:
    read = converter_for("dinov2").read_config(transformers.Dinov2Config().to_dict())
    assert Dinov2Config().values() == Dinov2Config(**read | {"label_names": None}).values()


@pytest.mark.parametrize("size", [(16, 16), (12, 12), (20, 20), (8, 24), (24, 8), (18, 21), (4, 4)])
def test_positions_are_stretched_to_an_images_size_as_transformers_does(size: tuple[int, int], tmp_path: Path) -> None:
    theirs, ours = both(tmp_path)
    pixels = torch.randn(2, 3, *size)
    expected, found = theirs(pixels), ours(pixels)
    assert torch.allclose(found.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=0)
    assert torch.allclose(found.pooler_output, expected.pooler_output, atol=1e-5, rtol=0)


def test_hidden_patches_are_the_mask_token_and_train_it(tmp_path: Path) -> None:
    theirs, ours = both(tmp_path)
    pixels, hidden = torch.randn(2, 3, 16, 16), torch.rand(2, 16) < 0.5
    expected, found = theirs(pixels, bool_masked_pos=hidden), ours(pixels, bool_masked_pos=hidden)
    assert torch.allclose(found.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=0)
    expected.last_hidden_state[:, :, 0].square().mean().backward()
    found.last_hidden_state[:, :, 0].square().mean().backward()
    assert torch.allclose(ours.embeddings.mask_token.grad, theirs.embeddings.mask_token.grad, atol=1e-6)


def test_a_layer_scale_multiplies_each_feature_of_its_sublayer() -> None:
    scaled, hidden = LayerScale(nn.Linear(4, 4), 4, 0.5), torch.randn(3, 4)
    assert torch.equal(scaled(hidden), scaled.inner(hidden) * 0.5)
    nn.init.normal_(scaled.weight)
    assert torch.equal(scaled(hidden), scaled.inner(hidden) * scaled.weight)
    assert "value=0.5" in str(scaled)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (
            torch.zeros(2, 1, 16, 16),
            r"shape \(images, 3, height, width\) and hold at least one patch of 4 x 4, found \(2, 1, 16, 16\)",
        ),
        (torch.zeros(2, 3, 3, 16), r"at least one patch of 4 x 4, found \(2, 3, 3, 16\); use the image processor"),
        (torch.zeros(3, 16, 16), r"found \(3, 16, 16\)"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"pixel_values must be floats, found torch.uint8"),
    ],
)
def test_other_images_are_refused(pixels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dinov2.from_config(Dinov2Config(**SIZES))(pixels)


@pytest.mark.parametrize(
    ("fields", "task", "hidden", "message"),
    [
        (
            {},
            "base",
            torch.zeros(2, 15, dtype=torch.bool),
            r"must be torch.bool \(2, 16\), a value a patch, found torch.bool \(2, 15\)",
        ),
        ({}, "base", torch.zeros(2, 16), r"found torch.float32 \(2, 16\)"),
        ({"has_mask_token": False}, "base", torch.zeros(2, 16, dtype=torch.bool), "given to a model with has_mask_token=False"),
        ({}, "classification", torch.zeros(2, 16, dtype=torch.bool), "given to a model with task='classification'"),
    ],
)
def test_strange_hidden_patches_are_refused(fields: dict[str, object], task: str, hidden: torch.Tensor, message: str) -> None:
    model = Dinov2.from_config(Dinov2Config(**SIZES, **fields), task)
    with pytest.raises(DataError, match=f"bool_masked_pos .*{message}"):
        model(torch.zeros(2, 3, 16, 16), bool_masked_pos=hidden)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": (16, 8)}, r"image_size=\(16, 8\) must be a height and an equal width, each at least 1"),
        ({"patch_size": (0, 0)}, r"patch_size=\(0, 0\) must be a height and an equal width"),
        ({"patch_size": (32, 32)}, r"patch_size=\(32, 32\) is larger than image_size=\(16, 16\)"),
        ({"num_channels": 0}, "num_channels=0 must be at least 1"),
        ({"width_ratio": 0}, "width_ratio=0 must be at least 1"),
    ],
)
def test_an_impossible_dinov2_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dinov2Config(**SIZES | fields)


def test_stochastic_depth_is_refused() -> None:
    source = transformers.Dinov2Config(drop_path_rate=0.1).to_dict()
    with pytest.raises(ConfigError, match=r"drop_path_rate: .*0.1.*stochastic depth is not built"):
        converter_for("dinov2").read_config(source)
