from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.heads import Pooler
from modelzoo.models.vit import ViT, ViTConfig
from modelzoo.verification import verify

SIZES = {
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 24,
    "image_size": (8, 12),
    "patch_size": (4, 4),
    "pooler_size": 16,
}


def test_the_defaults_are_those_of_transformers() -> None:
    read = converter_for("vit").read_config(transformers.ViTConfig().to_dict())
    assert ViTConfig().values() == ViTConfig(**read | {"label_names": None}).values()


def test_patches_are_a_linear_map_of_each_square_row_by_row() -> None:
    layer = ViT(ViTConfig(**SIZES)).embeddings
    nn.init.normal_(layer.bias)
    pixels = torch.randn(2, 3, 8, 12)
    squares = [pixels[:, :, row : row + 4, column : column + 4] for row in (0, 4) for column in (0, 4, 8)]
    patches = torch.stack([square.flatten(1) @ layer.weight.flatten(1).T + layer.bias for square in squares], 1)
    expected = torch.cat([layer.class_token.expand(2, -1, -1), patches], 1) + layer.position
    assert torch.allclose(layer(pixels), expected, atol=1e-6)


@pytest.mark.parametrize("options", [{"pooler_output_size": 5}, {"pooler_act": "relu"}, {"pooler_output_size": None}])
def test_the_pooler_has_a_width_and_an_activation(options: dict[str, object], tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4, **options
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "theirs")
    assert verify(tmp_path / "theirs").is_equal
    assert "pooler_output" in verify(tmp_path / "theirs").outputs
    model = modelzoo.from_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    assert verify(tmp_path / "ours").is_equal


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_pooler_is_a_map_and_its_activation(name: str) -> None:
    pooler, hidden = Pooler(8, 3, activation_name=name), torch.randn(2, 8)
    assert torch.equal(pooler(hidden), getattr(torch, name)(pooler.dense(hidden)))
    assert f"activation={name}" in str(pooler)


def test_an_image_processors_settings_are_copied(tmp_path: Path) -> None:
    ViT.from_config(ViTConfig(**SIZES)).save_pretrained(tmp_path / "first")
    (tmp_path / "first" / "preprocessor_config.json").write_text('{"a": 1}')
    modelzoo.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
    assert (tmp_path / "second" / "preprocessor_config.json").read_text() == '{"a": 1}'


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (
            torch.zeros(2, 3, 8, 8),
            r"pixel_values must have shape \(images, 3, 8, 12\), found \(2, 3, 8, 8\); use the image processor",
        ),
        (torch.zeros(3, 8, 12), r"found \(3, 8, 12\)"),
        (torch.zeros(1, 1, 8, 12), r"found \(1, 1, 8, 12\)"),
        (torch.zeros(1, 3, 8, 12, dtype=torch.uint8), r"pixel_values must be floats, found torch.uint8"),
    ],
)
def test_images_of_another_form_are_refused(pixels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ViT.from_config(ViTConfig(**SIZES))(pixels)


def test_labels_are_checked() -> None:
    model = ViT.from_config(ViTConfig(**SIZES), "classification")
    pixels = torch.zeros(2, 3, 8, 12)
    with pytest.raises(DataError, match="labels: row 1: 2 is not in 0 to 1"):
        model(pixels, labels=torch.tensor([0, 2]))
    assert float(model(pixels, labels=torch.tensor([-100, -100])).loss) == 0.0
    with pytest.raises(DataError, match="labels were given to a model for base"):
        ViT.from_config(ViTConfig(**SIZES))(pixels, labels=torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": (8,)}, r"image_size=\(8,\) must be a height and a width, each at least 1"),
        ({"patch_size": (0, 4)}, r"patch_size=\(0, 4\) must be a height and a width"),
        ({"image_size": (4, 12), "patch_size": (8, 8)}, r"patch_size=\(8, 8\) is larger than image_size=\(4, 12\)"),
        ({"num_channels": 0}, "num_channels=0 must be at least 1"),
        ({"pooler_size": 0}, "pooler_size=0 must be at least 1"),
        ({"pooler_activation": "tanz"}, "activation='tanz' is not known; did you mean tanh?"),
    ],
)
def test_an_impossible_vit_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ViTConfig(**fields)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("stated", [0, "224", [224, 224, 3], True, [8, None]])
def test_a_strange_image_size_is_refused(stated: object) -> None:
    source = transformers.ViTConfig().to_dict() | {"image_size": stated}
    with pytest.raises(ConfigError, match="image_size: expected a number of pixels from 1 to 65536 or a list of two, found"):
        converter_for("vit").read_config(source)
