"""A base stored in 8 or 4 bits below an adapter: products are those of the stored values, memory is what is planned."""

import sys
from pathlib import Path

import pytest
import torch
from harness import Case, made_here, row
from peft import PeftModel
from transformers import LlamaForCausalLM

import modelzoo
from modelzoo.adapters import AdapterConfig, add_adapter, merge_adapter, planned_bytes, quantized_maps, remove_adapter, save_adapter
from modelzoo.adapters.quantized import quantize_base
from modelzoo.errors import ConfigError
from modelzoo.models.adapted import write_merged
from modelzoo.models.llama import Llama, LlamaConfig
from modelzoo.models.model import Model
from modelzoo.sharded import stored_bytes
from modelzoo.verification import verification_batch, verify

ERRORS = {"int8": 0.01, "nf4": 0.12}
"""Largest share of a product that rounding changes on the mean."""


def llama() -> Model:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=80, hidden_size=64, num_layers=2, num_heads=4, num_key_value_heads=2, intermediate_size=128, max_positions=64
    )
    return Llama.from_config(config, "causal_lm").eval()


@pytest.fixture(autouse=True)
def _has_torchao() -> None:
    pytest.importorskip("torchao", reason="the extra `quantized` is not installed")


def floats_of(weight: torch.Tensor) -> torch.Tensor:
    return weight.get_original_weight() if hasattr(weight, "get_original_weight") else weight.dequantize()


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_products_and_gradients_are_those_of_the_stored_values(kind: str) -> None:
    stored, plain = llama(), llama()
    ids = torch.randint(3, 80, (2, 12))
    before, precision = plain(ids).logits, torch.get_float32_matmul_precision()
    add_adapter(stored, AdapterConfig(method="lora", r=4, base=kind))
    assert torch.get_float32_matmul_precision() == precision == "highest"
    maps = {name: each for name, each in stored.named_modules() if getattr(each, "keep_weight", None)}
    assert len(maps) == 2 * 7
    with torch.no_grad():
        for name, linear in maps.items():
            old, values = plain.get_submodule(name).weight, floats_of(linear.weight)
            source = torch.randn(64, old.shape[1])
            wanted, found = source @ old.T, source @ values.T
            assert float((found - wanted).abs().mean() / wanted.abs().mean()) < ERRORS[kind]
            plain.get_submodule(name).weight.copy_(values)
    add_adapter(plain, AdapterConfig(method="lora", r=4))
    with torch.no_grad():
        for first, second in zip(stored.parameters(), plain.parameters(), strict=True):
            if first.requires_grad:
                first.add_(0.1 * torch.randn_like(first))
                second.copy_(first)
    outputs = [model(ids, labels=ids) for model in (stored, plain)]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=0, atol=1e-6)
    assert not torch.equal(outputs[0].logits, before)
    for output in outputs:
        output.loss.backward()
    for first, second in zip(stored.parameters(), plain.parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None)
        if first.grad is not None:
            torch.testing.assert_close(first.grad, second.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_no_floats_of_a_map_wait_for_the_backward_and_bytes_are_as_planned(kind: str) -> None:
    model = llama()
    add_adapter(model, AdapterConfig(method="lora", r=4, base=kind))
    sizes = {linear.weight.numel() for linear, _ in quantized_maps(model)}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randint(3, 80, (1, 5))).logits.sum().backward()
    table = model.head.weight
    assert not [each.shape for each in kept if each.numel() in sizes and each.data_ptr() != table.data_ptr()]
    for linear, how in quantized_maps(model):
        assert stored_bytes(linear.weight) == planned_bytes(tuple(linear.weight.shape), how)
        assert stored_bytes(linear.weight) < {"int8": 0.28, "nf4": 0.15}[kind] * 4 * linear.weight.numel()


def test_the_file_is_plain_peft_and_merging_takes_the_floats_of_the_base(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    model = modelzoo.from_pretrained(tmp_path / "base")
    add_adapter(model, AdapterConfig(method="lora", r=4, base="int8"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    save_adapter(model, tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"its base is stored in fewer bits .*: modelzoo export RUN DST --to merged"):
        merge_adapter(model)
    with pytest.raises(ConfigError, match=r"its base is stored in fewer bits \(adapter.base\); load the base again"):
        remove_adapter(model)
    again = modelzoo.from_pretrained(tmp_path / "adapter")
    assert not quantized_maps(again)
    assert again.adapter_config.base is None
    theirs = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    ids = torch.randint(3, 80, (2, 12))
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
    write_merged(tmp_path / "adapter", tmp_path / "merged")
    torch.testing.assert_close(modelzoo.from_pretrained(tmp_path / "merged")(ids).logits, again(ids).logits, rtol=0, atol=1e-5)
    assert verify(tmp_path / "merged", local_files_only=True).is_equal


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize(
    ("family", "task"),
    [("gpt2", "causal_lm"), ("bert", "classification"), ("t5", "seq2seq_lm"), ("cpm1", "causal_lm"), ("mixtral", "causal_lm")],
)
def test_families_train_on_a_stored_base(family: str, task: str, kind: str) -> None:
    model = made_here(Case(family, task, row(family)["config"], "plain"))
    add_adapter(model, AdapterConfig.model_validate({"method": "lora", "r": 2, "base": kind}))
    model(**verification_batch(model)).loss.backward()
    found = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert found
    assert all("adapter" in name or name.startswith("head") for name in found)


def test_what_a_stored_base_does_not_go_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for method, reason in (
        ("dora", "lengths of the base's own rows"),
        ("bias", "writes the whole model"),
        (None, "trains all of it"),
    ):
        with pytest.raises(ValueError, match=reason):
            AdapterConfig.model_validate({"method": method, "base": "int8"})
    with pytest.raises(ValueError, match=r"adapter.base=nf4 and memory exclude each other"):
        AdapterConfig(method="lora", base="nf4").check_base(["memory"])
    with pytest.raises(ConfigError, match=r"Llama has no frozen map in its blocks; leave base out"):
        quantize_base(llama(), "int8")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(
        ConfigError, match=r"adapter.base=int8 needs torchao, which is not installed; pip install 'modelzoo-hub\[quantized\]'"
    ):
        add_adapter(llama(), AdapterConfig(method="lora", base="int8"))
