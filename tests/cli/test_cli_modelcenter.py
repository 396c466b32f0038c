"""`modelzoo convert --from modelcenter`: what is said, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import modelzoo
from modelzoo.cli import main
from modelzoo.models.auto import model_class


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A GPT-2 of one layer as ModelCenter keeps it, with its padding row."""
    generator = torch.Generator().manual_seed(0)
    layer = "encoder.layers.0"
    shapes = {
        "input_embedding.weight": (11, 8),
        "position_embedding.weight": (6, 8),
        "encoder.output_layernorm.weight": (8,),
        f"{layer}.self_att.layernorm_before_attention.weight": (8,),
        f"{layer}.ffn.layernorm_before_ffn.weight": (8,),
        f"{layer}.ffn.ffn.w_in.w.weight": (12, 8),
        f"{layer}.ffn.ffn.w_out.weight": (8, 12),
        **{f"{layer}.self_att.self_attention.{name}.weight": (8, 8) for name in ("project_q", "project_k", "project_v")},
        f"{layer}.self_att.self_attention.attention_out.weight": (8, 8),
    }
    biases = {f"{name.removesuffix('weight')}bias": shape[:1] for name, shape in shapes.items() if "embedding" not in name}
    tensors = {name: torch.randn(shape, generator=generator).half() * 0.2 for name, shape in (shapes | biases).items()}
    tensors["input_embedding.weight"] = torch.cat([tensors["input_embedding.weight"], torch.zeros(1, 8).half()])
    config = {"vocab_size": 11, "dim_model": 8, "num_heads": 2, "dim_head": 4, "dim_ff": 12, "num_layers": 1, "position_size": 6}
    folder = tmp_path / "gpt2-base"
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_convert_writes_a_folder_that_equals_transformers(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    words = ["convert", str(old), str(new), "--from", "modelcenter", "--family", "gpt2", "--allow-pickle"]
    assert main([*words, "--dtype", "float32"]) == 0
    said = capsys.readouterr().out
    assert "gpt2 for causal_lm, 684 parameters, float32" in said
    assert "row 11 of the token table, zeros, is dropped" in said
    assert 'activation_function is "gelu"' in said
    assert main(["verify", str(new)]) == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(new).config.vocab_size == 11


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "modelcenter", "--family", "gpt2"], "--allow-pickle"),
        (
            ["--from", "modelcenter", "--allow-pickle"],
            "bert, roberta, longformer, gpt2, gptj, llama, opt, t5, mt5, vit, cpm1, cpm2, cpm3, glm-10b",
        ),
        (["--from", "modelcenter", "--family", "bert", "--allow-pickle"], "expected"),
        (["--from", "modelcenter", "--family", "gpt2", "--task", "base", "--allow-pickle"], "--task base"),
        (["--from", "modelcentre", "--family", "gpt2", "--allow-pickle"], "--from modelcentre: expected modelcenter"),
        (["--residual-scale", "100"], "--residual-scale 100: expected --from modelcenter"),
    ],
)
def test_what_does_not_fit_is_one_error(
    words: list[str], said: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(old), str(tmp_path / "new"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["cpm1", "cpm2", "cpm3", "glm-10b"])
def test_families_without_a_model_in_transformers_keep_modelcenters_names(family: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_heads": 2, "head_size": 4, "intermediate_size": 12, "num_layers": 2}
    small = {"cpm2": {"num_decoder_layers": 2}, "cpm3": {"prompt_types": 2, "prompt_length": 3, "segment_types": 4}}
    kind = model_class(family)
    config = kind.config_class(**sizes, **small.get(family, {}))
    task = "seq2seq_lm" if family == "cpm2" else "causal_lm"
    torch.manual_seed(0)
    kind.from_config(config, task).save_pretrained(tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    old = tmp_path / "old"
    old.mkdir()
    torch.save(tensors, old / "pytorch_model.pt")
    stated = json.loads((tmp_path / "hf" / "config.json").read_text())
    for key in ("model_type", "architectures"):
        del stated[key]
    (old / "config.json").write_text(json.dumps(stated))
    words = ["convert", str(old), str(tmp_path / "new"), "--from", "modelcenter", "--family", family]
    assert main(words) == 2
    assert main([*words, "--allow-pickle"]) == 0
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert modelzoo.from_pretrained(tmp_path / "new").task == task
