import json
from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.modernbert import ModernBert, ModernBertConfig
from modelzoo.verification import verify

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "local_attention": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}


def saved(folder: Path, task: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    theirs = getattr(transformers, f"ModernBertFor{task}")(transformers.ModernBertConfig(**SIZES, **options)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs.save_pretrained(folder)
    return theirs


def read(**changes: object) -> dict[str, object]:
    source = {name: value for name, value in transformers.ModernBertConfig().to_dict().items() if name not in changes}
    return converter_for("modernbert").read_config(source | {key: value for key, value in changes.items() if value is not None})


def test_the_defaults_are_those_of_transformers() -> None:
    assert ModernBertConfig().values() == ModernBertConfig(**read() | {"label_names": None}).values()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_classifier_reads_the_first_token_or_the_mean(pooling: str, tmp_path: Path) -> None:
    saved(tmp_path, "SequenceClassification", classifier_pooling=pooling, num_labels=3)
    assert verify(tmp_path).is_equal
    model = modelzoo.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0], [0, 0, 11, 12]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
    padded = model(ids, mask).logits
    for row, length in ((0, 4), (1, 2)):
        assert torch.allclose(model(ids[row : row + 1, :length]).logits[0], padded[row], atol=1e-5)
    assert torch.allclose(model(ids[2:, 2:]).logits[0], padded[2], atol=1e-4)  # rotary positions are relative


@pytest.mark.parametrize("width", [12, 13, 32])
def test_long_texts_without_a_mask_equal_transformers(width: int, tmp_path: Path) -> None:
    theirs = saved(tmp_path, "MaskedLM")
    ids = torch.randint(3, 40, (2, width))
    assert torch.allclose(modelzoo.from_pretrained(tmp_path)(ids).logits, theirs(ids).logits, atol=2e-5)


def test_a_layout_is_packed_only_where_windows_save_work() -> None:
    model = ModernBert.from_config(ModernBertConfig(vocab_size=40, num_layers=1, local_attention=6, pad_token_id=0))
    packed = [model._layout(torch.ones(1, width, dtype=torch.long), None, None, None).is_packed for width in (12, 13)]
    assert packed == [False, True]


def test_sparse_prediction_has_the_same_loss(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "MaskedLM", sparse_prediction=True)
    ids = torch.randint(3, 40, (2, 12))
    labels = torch.where(torch.rand(2, 12) < 0.3, ids, -100)
    labels[0, 0] = 5
    model = modelzoo.from_pretrained(tmp_path)
    expected = theirs(input_ids=ids, labels=labels).loss
    for each in (model.eval(), model.train()):
        assert torch.allclose(each(ids, labels=labels).loss, expected, atol=1e-5)


def test_a_config_from_before_version_5_means_the_same(tmp_path: Path) -> None:
    saved(tmp_path, "MaskedLM")
    path = tmp_path / "config.json"
    source = json.loads(path.read_text())
    for name in ("layer_types", "rope_parameters"):
        source.pop(name)
    source |= {"global_attn_every_n_layers": 2, "global_rope_theta": 900.0, "local_rope_theta": 30.0}
    path.write_text(json.dumps(source))
    config = modelzoo.from_pretrained(tmp_path).config
    assert isinstance(config, ModernBertConfig)
    assert (config.global_layers, config.global_rope_theta, config.local_rope_theta) == ((0, 2), 900.0, 30.0)
    assert verify(tmp_path).is_equal


def test_changed_layers_and_wavelengths_are_written_in_the_form_of_version_5() -> None:
    source = transformers.ModernBertConfig().to_dict() | {"global_attn_every_n_layers": 3}
    values = ModernBertConfig(**read() | {"global_layers": (1,), "local_rope_theta": 50.0}).values()
    written = converter_for("modernbert").write_config(values, source, "base", torch.float32)
    assert written["layer_types"] == ["sliding_attention", "full_attention", *["sliding_attention"] * 20]
    assert written["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 50.0}
    assert "global_attn_every_n_layers" not in written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: expected a list of 22 kinds"),
        ({"layer_types": ["half_attention"] * 22}, "layer_types: expected full_attention or sliding_attention, found 'half_att"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "global_attn_every_n_layers: expected a whole number from 1"),
        ({"rope_parameters": 3}, "rope_parameters: expected an object a kind of layer, found 3"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "full_attention: rope_type: expected 'default', found 'y"),
        ({"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "full_attention: rope_theta: expected a number above 1"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: expected null, found {'type': 'linear'}"),
        ({"classifier_pooling": "max"}, "classifier_pooling: expected one of cls, mean, found 'max'"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_another_label_for_no_target_is_refused() -> None:
    source = transformers.ModernBertConfig(sparse_pred_ignore_index=-1).to_dict()
    with pytest.raises(ConfigError, match="sparse_pred_ignore_index: expected -100, found -1; the one label that means no target"):
        converter_for("modernbert").read_config(source, "masked_lm")
    assert converter_for("modernbert").read_config(source, "classification")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 256}, "hidden_size=768 / num_heads=256 must be even for rotary positions"),
        ({"feed_forward_dropout": 1.0}, "feed_forward_dropout=1.0 must lie in 0 to 1"),
        ({"classifier_dropout": None}, "classifier_dropout=None: ModernBERT's config.json takes a number alone"),
        ({"local_attention": 0}, "local_attention=0 must be at least 1"),
        ({"local_rope_theta": 1.0}, "local_rope_theta=1.0 must be greater than 1"),
        ({"global_layers": (0, 22)}, r"global_layers: layer 22 is not in 0 to 21 \(num_layers=22\)"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is not known; use 'cls' or 'mean'"),
        ({"classifier_activation": "gelo"}, "activation='gelo' is not known"),
    ],
)
def test_an_impossible_modernbert_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModernBertConfig(**fields)  # type: ignore[arg-type]  # wrong on purpose


def test_fresh_weights_are_narrower_where_a_sublayer_ends() -> None:
    config = ModernBertConfig(vocab_size=40, hidden_size=64, num_heads=4, num_layers=8, intermediate_size=96, pad_token_id=0)
    model = ModernBert.from_config(config, "classification")
    std = {name: float(parameter.std()) for name, parameter in model.named_parameters() if parameter.dim() > 1}
    layer = "encoder.layers.1"
    assert std[f"{layer}.feed_forward.sublayer.up.weight"] == pytest.approx(0.02, rel=0.05)
    assert std[f"{layer}.feed_forward.sublayer.down.weight"] == pytest.approx(0.005, rel=0.05)
    assert std[f"{layer}.self_attention.sublayer.output.weight"] == pytest.approx(0.005, rel=0.05)
    assert std["head.dense.weight"] == pytest.approx(0.005, rel=0.05)
    assert std["head.output.weight"] == pytest.approx(0.125, rel=0.2)
