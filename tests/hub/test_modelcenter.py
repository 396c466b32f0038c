"""ModelCenter's checkpoints come back as what transformers had, whatever ModelCenter did to them."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import modelcenter_files as files
import pytest
import torch
from safetensors.torch import load_file

from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.hub import convert_modelcenter
from modelzoo.hub.checkpoint import open_pickle
from modelzoo.hub.modelcenter_source import opened
from modelzoo.models.auto import from_pretrained
from modelzoo.verification import verify

EXACT: dict[str, tuple[str, Callable[[], files.Files]]] = {
    "bert": ("bert", files.bert),
    "bert untied": ("bert", lambda: files.bert(tie_word_embeddings=False)),
    "roberta": ("roberta", lambda: files.bert("roberta")),
    "roberta untied": ("roberta", lambda: files.bert("roberta", tie_word_embeddings=False)),
    "longformer": ("longformer", lambda: files.bert("longformer", attention_window=4)),
    "gpt2": ("gpt2", files.gpt2),
    "gpt2 with an even vocabulary": ("gpt2", lambda: files.gpt2(padded=False)),
    "gpt2 of early files": ("gpt2", lambda: files.gpt2(stack="decoder")),
    "gptj": ("gptj", files.gptj),
    "opt": ("opt", files.opt),
    "llama": ("llama", files.llama),
    "llama tied": ("llama", lambda: files.llama(tied=True)),
    "flan-t5": ("t5", lambda: files.t5("v1.1", scale=1)),
    "vit": ("vit", files.vit),
}
SCALED: dict[str, tuple[str, Callable[[], files.Files]]] = {
    "t5": ("t5", files.t5),
    "t5-v1_1": ("t5", lambda: files.t5("v1.1")),
    "mt5": ("mt5", lambda: files.t5("mt5")),
}
SCALES = {**dict.fromkeys(SCALED, 100), "flan-t5": 1}


def in_file(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What transformers writes; it has other names for ViT in memory."""
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        return model.state_dict() | load_file(Path(place) / "model.safetensors")


def convert(case: str, tmp_path: Path) -> tuple[torch.nn.Module, Path]:
    family, build = (EXACT | SCALED)[case]
    model, config, tensors = build()
    source = files.written(tmp_path / "old", config, tensors)
    convert_modelcenter(source, tmp_path / "new", family, allow_pickle=True, residual_scale=SCALES.get(case))
    return model, tmp_path / "new"


@pytest.mark.parametrize("case", EXACT)
def test_every_tensor_comes_back_as_it_was(case: str, tmp_path: Path) -> None:
    model, folder = convert(case, tmp_path)
    found, expected = load_file(folder / "model.safetensors"), in_file(model)
    unused = ("cls.predictions.bias", "lm_head.bias") if "untied" in case else ()  # transformers has it, and reads decoder.bias
    assert all(torch.equal(value, expected[name]) for name, value in found.items() if name not in unused and ".pooler." not in name)
    assert case == "vit" or {name for name, _ in model.named_parameters()} <= {*found}


@pytest.mark.parametrize("case", EXACT | SCALED)
def test_the_table_of_names_goes_both_ways(case: str, tmp_path: Path) -> None:
    """From Hugging Face's names back to ModelCenter's: every tensor that is not left out, and the padding row of zeros."""
    _, config, tensors = (EXACT | SCALED)[case][1]()
    family = (EXACT | SCALED)[case][0]
    folder = files.written(tmp_path / "old", config, tensors)
    with open_pickle(folder, "pytorch_model.pt", allow_pickle=True) as checkpoint:
        source = opened(checkpoint, family, config, SCALES.get(case, 1))
        mapping = source.mapping
        theirs = mapping.to_theirs(mapping.to_ours(tensors))
    twice = {tie.alias for tie in mapping.tied}  # GPT-J's second norm, which is the first
    assert {name for name in tensors if mapping.ignored(name) is None} - twice == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(value, tensors[name], rtol=2**-22 if case in SCALED else 0, atol=0)


@pytest.mark.parametrize("case", SCALED)
def test_scaled_tensors_come_back_to_one_unit_in_the_last_place(case: str, tmp_path: Path) -> None:
    model, folder = convert(case, tmp_path)
    found = load_file(folder / "model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=2**-22, atol=0)


@pytest.mark.parametrize("case", EXACT | SCALED)
def test_the_written_folder_equals_transformers(case: str, tmp_path: Path) -> None:
    model, folder = convert(case, tmp_path)
    found = verify(folder, local_files_only=True)
    assert found.is_equal
    assert max(found.outputs.values()) <= 1e-5
    assert not found.missing
    assert found.reference == type(model).__name__


@pytest.mark.parametrize("case", EXACT | SCALED)
def test_logits_are_those_of_the_model_that_modelcenter_was_given(case: str, tmp_path: Path) -> None:
    model, folder = convert(case, tmp_path)
    ours = from_pretrained(folder)
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    if case == "vit":
        ids = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    extra = {"labels": ids} if hasattr(model.config, "d_kv") else {}
    with torch.no_grad():
        torch.testing.assert_close(ours(ids, **extra).logits, model(ids, **extra).logits, rtol=0, atol=1e-5)


def test_the_pooler_is_kept_beside_the_head(tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    source = files.written(tmp_path / "old", config, tensors)
    convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    model = from_pretrained(tmp_path / "new", task="base")
    assert torch.equal(model.get_parameter("pooler.dense.weight"), tensors["pooler.dense.weight"])
    assert not model.load_report.new


def test_a_file_without_a_head_becomes_a_backbone(tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    tensors = {f"bert.{name}": value for name, value in tensors.items() if not name.startswith("lm_head.")}
    source = files.written(tmp_path / "old", config, tensors)
    report = convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
    assert report.task == "base"
    assert json.loads((tmp_path / "new" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert verify(tmp_path / "new", local_files_only=True).is_equal


def test_the_padding_row_is_dropped_and_said(tmp_path: Path) -> None:
    _, config, tensors = files.gpt2()
    for number, stated in enumerate((42, 41)):  # ModelCenter's own configs say either
        source = files.written(tmp_path / f"old{number}", config | {"vocab_size": stated}, tensors)
        report = convert_modelcenter(source, tmp_path / f"new{number}", "gpt2", allow_pickle=True)
        assert json.loads((report.folder / "config.json").read_text())["vocab_size"] == 41
        assert any("row 41 of the token table" in note for note in report.notes)


def test_a_padding_row_that_holds_values_is_no_padding(tmp_path: Path) -> None:
    _, config, tensors = files.gpt2()
    tensors["input_embedding.weight"][-1] = 0.5
    source = files.written(tmp_path / "old", config, tensors)
    report = convert_modelcenter(source, tmp_path / "new", "gpt2", allow_pickle=True)
    assert json.loads((report.folder / "config.json").read_text())["vocab_size"] == 42
    source = files.written(tmp_path / "old", config | {"vocab_size": 41}, tensors)
    with pytest.raises(CheckpointError, match=r"row 41: expected zeros.* found values up to 0\.5"):
        convert_modelcenter(source, tmp_path / "other", "gpt2", allow_pickle=True)


def test_unused_output_rows_are_left_out_and_said(tmp_path: Path) -> None:
    _, config, tensors = files.t5()
    tensors["output_projection.w.weight"] = torch.zeros(40, 16)
    source = files.written(tmp_path / "old", config | {"scale": True}, tensors)
    report = convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True)
    assert [key for key, reason in report.left_out if "unused" in reason] == ["output_projection.w.weight"]


def test_a_published_t5_whose_config_says_untied_is_tied_by_its_tensors(tmp_path: Path) -> None:
    model, config, tensors = files.t5()
    tensors["output_projection.weight"] = model.shared.weight.detach().clone()
    half = {name: value.half() for name, value in tensors.items()}
    source = files.written(tmp_path / "old", config | {"tied": False}, half)
    report = convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=100, dtype="float32")
    assert any("sqrt(16) times larger" in note for note in report.notes)
    assert "lm_head.weight" not in load_file(tmp_path / "new" / "model.safetensors")
    assert verify(tmp_path / "new", local_files_only=True).is_equal
    half["output_projection.weight"][3] *= 2
    source = files.written(tmp_path / "trained", config | {"tied": False}, half)
    convert_modelcenter(source, tmp_path / "untied", "t5", allow_pickle=True, residual_scale=100, dtype="float32")
    assert "lm_head.weight" in load_file(tmp_path / "untied" / "model.safetensors")
    assert verify(tmp_path / "untied", local_files_only=True).is_equal


def test_keys_of_initialisation_and_precision_are_known_and_others_are_said(tmp_path: Path) -> None:
    _, config, tensors = files.bert("roberta")
    config |= {"emb_init_mean": 0.0, "emb_init_std": 1, "att_mask_value": "-1e4", "half": True, "int8": False, "proj_bias": True}
    source = files.written(tmp_path / "old", config, tensors)
    assert convert_modelcenter(source, tmp_path / "new", "roberta", allow_pickle=True).notes == ()
    source = files.written(tmp_path / "old", config | {"my_key": 1}, tensors)
    report = convert_modelcenter(source, tmp_path / "other", "roberta", allow_pickle=True)
    assert report.notes == ("keys of config.json that are not read: my_key",)


def test_mt5_is_never_tied(tmp_path: Path) -> None:
    _, config, tensors = files.t5("mt5")
    del config["tied"]
    source = files.written(tmp_path / "old", config, tensors)
    convert_modelcenter(source, tmp_path / "new", "mt5", allow_pickle=True, residual_scale=100)
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["lm_head.weight"], tensors["output_projection.weight"])
    source = files.written(tmp_path / "old", config | {"tied": True}, tensors)
    with pytest.raises(ConfigError, match="tied: expected false, found true"):
        convert_modelcenter(source, tmp_path / "other", "mt5", allow_pickle=True, residual_scale=100)


def test_float64_needs_a_dtype(tmp_path: Path) -> None:
    _, config, tensors = files.gpt2()
    source = files.written(tmp_path / "old", config, {name: value.double() for name, value in tensors.items()})
    with pytest.raises(CheckpointError, match="found float64"):
        convert_modelcenter(source, tmp_path / "new", "gpt2", allow_pickle=True)
    report = convert_modelcenter(source, tmp_path / "new", "gpt2", allow_pickle=True, dtype="float32")
    assert report.dtype == torch.float32


def test_an_untied_head_without_its_output_layer_is_missing_a_tensor(tmp_path: Path) -> None:
    _, config, tensors = files.bert(tie_word_embeddings=False)
    del tensors["lm_head.decoder.weight"]
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(CheckpointError, match=r"lm_head\.decoder\.weight: expected a tensor of shape \[40, 16\], found nothing"):
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)


def test_half_values_are_scaled_in_full_width(tmp_path: Path) -> None:
    model, config, tensors = files.t5()
    half = {name: value.half() for name, value in tensors.items()}
    source = files.written(tmp_path / "old", config, half)
    report = convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=100, dtype="float32")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert torch.equal(found["shared.weight"], half["input_embedding.weight"].float() * 100)
    torch.testing.assert_close(found["shared.weight"], model.shared.weight.detach(), rtol=2**-10, atol=1e-5)
    assert any("what float16 lost" in note for note in report.notes)
    report = convert_modelcenter(source, tmp_path / "half", "t5", allow_pickle=True, residual_scale=100)
    assert report.dtype == torch.float16
    assert any("overflows in float16" in note for note in report.notes)


def test_values_too_large_for_half_are_refused(tmp_path: Path) -> None:
    _, config, tensors = files.t5()
    tensors["input_embedding.weight"][3, 2] = 700.0
    source = files.written(tmp_path / "old", config, {name: value.half() for name, value in tensors.items()})
    with pytest.raises(
        CheckpointError, match=r"input_embedding\.weight: expected finite values in shared\.weight.*--dtype float32"
    ):
        convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=100)
    assert not (tmp_path / "new").exists()
    convert_modelcenter(source, tmp_path / "new", "t5", allow_pickle=True, residual_scale=100, dtype="float32")


def test_the_two_norms_of_gptj_must_be_one(tmp_path: Path) -> None:
    _, config, tensors = files.gptj()
    tensors["encoder.layers.1.ffn.layernorm_before_ffn.bias"][0] += 1
    source = files.written(tmp_path / "old", config, tensors)
    both = r"layers\.1\.ffn\.layernorm_before_ffn\.bias: .*layers\.1\.self_att\.layernorm_before_attention\.bias"
    with pytest.raises(CheckpointError, match=both):
        convert_modelcenter(source, tmp_path / "new", "gptj", allow_pickle=True)


def test_shards_and_the_tokenizer_come_along(tmp_path: Path) -> None:
    _, config, tensors = files.bert()
    source = files.written(tmp_path / "old", config, tensors)
    (source / "vocab.txt").write_text("[PAD]\n")
    convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True, max_shard_size="10KB")
    assert (tmp_path / "new" / "model.safetensors.index.json").is_file()
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"
    assert from_pretrained(tmp_path / "new").task == "masked_lm"


def test_an_output_layer_that_differs_needs_the_config_to_say_which(tmp_path: Path) -> None:
    _, config, tensors = files.bert(tie_word_embeddings=False)
    del config["tied"]
    source = files.written(tmp_path / "old", config, tensors)
    with pytest.raises(CheckpointError, match=r'lm_head\.decoder\.weight: expected the values of input_embedding\.weight.*"tied"'):
        convert_modelcenter(source, tmp_path / "new", "bert", allow_pickle=True)
