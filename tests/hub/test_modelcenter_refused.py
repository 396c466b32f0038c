"""What is no checkpoint of ModelCenter's, or not of the family that was said, is one error and writes nothing."""

from collections.abc import Callable
from pathlib import Path

import modelcenter_files as files
import pytest
import torch

from modelzoo.errors import CheckpointError, ConfigError, SaveError
from modelzoo.hub import convert_modelcenter


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 16}, "hidden_size: expected ModelCenter's own keys"),
        ({"pos_rotary_dim": 4}, "pos_rotary_dim: expected a config of bert, found a key of gptj"),
        ({"post_layer_norm": False}, "post_layer_norm: expected true, found false"),
        ({"length_scale": True}, "length_scale: expected false, found true"),
        ({"dim_head": 8}, "dim_head: expected dim_model / num_heads = 16 / 4, found 8"),
        ({"ffn_activate_fn": "gated_gelu"}, "ffn_activate_fn: expected one of gelu, gelu_new, relu"),
        ({"num_layers": "3"}, "num_layers: expected a whole number"),
    ],
)
def test_a_config_of_another_kind_is_refused_by_its_key(change: dict[str, object], words: str, tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    source = files.written(tmp_path / "old", config | change, tensors)
    with pytest.raises(ConfigError) as caught:
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    assert words in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_config_without_its_keys_is_compared_with_the_tensors(tmp_path: Path) -> None:
    _, _, tensors = files.bert()
    source = files.written(tmp_path / "old", {}, tensors)
    with pytest.raises(CheckpointError) as caught:
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    text = str(caught.value)
    assert "vocab_size: expected 40, as input_embedding.weight has, found 119547 (ModelCenter's default)" in text
    assert "num_layers: expected 3" in text
    assert "dim_ff: expected 24" in text


def test_opt_says_which_sizes_it_needs(tmp_path: Path) -> None:
    _, config, tensors = files.opt()
    del config["dim_model"]
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(ConfigError, match="dim_model: expected a whole number from 1 to 131072, found null"):
        convert_modelcenter(source, tmp_path / "new", "opt", allow_pickle=True)


def test_missing_and_extra_entries_are_one_error(tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    del tensors["encoder.layers.1.self_att.self_attention.project_k.bias"]
    tensors["dense.weight"] = torch.zeros(2, 16)
    tensors["encoder.layers.2.ffn.ffn.w_out.weight"] = torch.zeros(16, 23)
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(CheckpointError) as caught:
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    text = str(caught.value)
    assert "3 problems" in text
    assert "project_k.bias: expected a tensor of shape [16], found nothing" in text
    assert "dense.weight: expected no such key, found float32 [2, 16]" in text
    assert "w_out.weight: expected shape [16, 24], found [16, 23]" in text


@pytest.mark.parametrize(
    ("build", "family"), [(files.bert, "gpt2"), (files.gpt2, "bert"), (files.llama, "gptj"), (files.opt, "t5")]
)
def test_a_checkpoint_of_another_family_is_refused(build: Callable[[], files.Files], family: str, tmp_path: Path) -> None:
    _, config, tensors = build()
    source = files.written(tmp_path / "old", config, tensors)
    scale = 100 if family == "t5" else None
    with pytest.raises((CheckpointError, ConfigError)):
        convert_modelcenter(source, tmp_path / "new", family, allow_pickle=True, residual_scale=scale)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"family": None}, "family=None: expected one of bert, roberta"),
        ({"family": "brt"}, "did you mean bert?"),
        ({"family": "cpm1"}, "family='cpm1', task='causal_lm', allow_pickle=True).save_pretrained(target)"),
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"residual_scale": 100}, "residual_scale=100: expected none for bert"),
        ({"allow_pickle": False}, "allow_pickle=True"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], words: str, tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        convert_modelcenter(source, tmp_path / "new", **{"family": "bert", "allow_pickle": True, **options})
    assert words in str(caught.value)


def test_t5_needs_to_know_what_its_residual_was_divided_by(tmp_path: Path) -> None:
    _, config, tensors = files.t5()
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(ConfigError, match="residual_scale: expected 100 or 1 for t5, found nothing"):
        convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True)
    with pytest.raises(ConfigError, match="residual_scale=10: expected 100"):
        convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=10)
    source = files.written(tmp_path / "old", config | {"scale": True}, tensors)
    with pytest.raises(ConfigError, match="residual_scale=1: expected 100"):
        convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=1)
    convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True)


def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    with pytest.raises(CheckpointError, match=r"config\.json: expected the config of a model, found nothing"):
        convert_modelcenter(tmp_path, tmp_path / "new", "bert", allow_pickle=True)
    source = files.written(tmp_path / "old", config, {"weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="expected once in a checkpoint of ModelCenter's, found weight"):
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    source = files.written(tmp_path / "old", config, tensors | {"step": 3})
    with pytest.raises(CheckpointError, match="step: expected a tensor, found int"):
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    tensors["encoder.layers.0.ffn.ffn.w_in.w.bias"][0] = float("nan")
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(CheckpointError, match=r"w_in\.w\.bias: expected finite values"):
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(SaveError, match="taken"):
        convert_modelcenter(source, tmp_path / "taken", "bert", allow_pickle=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"representation_size": 8}, "representation_size: expected null, found 8"),
        ({"attn_bias": False}, "attn_bias: expected true, found false"),
        ({"image_size": 8}, "image_size: expected ModelCenter's own keys of a ViT"),
        ({"dim_model": 16}, "dim_model: expected ModelCenter's own keys of a ViT"),
        ({"num_heads": 3}, "num_heads: expected a divisor of hidden_size=16, found 3"),
        ({"num_classes": 7}, "num_classes: expected 5, as head.weight has, found 7"),
        ({"img_size": 12}, r"pos_embed has, found 10"),
        ({"patch_size": 2}, "patch_size: expected 4, as patch_embed.proj.weight has, found 2"),
        ({"num_layers": 2}, "num_layers: expected 3, as pytorch_model.pt has, found 2"),
    ],
)
def test_a_vit_that_is_not_hugging_faces_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    _, config, tensors = files.vit()
    source = files.written(tmp_path / "old", config | change, tensors)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        convert_modelcenter(source, tmp_path / "new", "vit", allow_pickle=True)
    assert words in str(caught.value)
