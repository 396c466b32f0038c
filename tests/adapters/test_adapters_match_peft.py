"""The same adapter here and in PEFT on transformers' model: equal outputs and gradients, files read both ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from harness import Case, main_task, reference, row
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import modelzoo
from modelzoo.adapters import AdapterConfig, add_adapter, load_adapter, low_rank_parts, save_adapter
from modelzoo.converters import converter_for
from modelzoo.models.model import Model
from modelzoo.verification import verification_batch

TOLERANCE = 1e-5
FAMILIES = ["bert", "gpt2", "llama", "t5", "modernbert", "cpmant", "dinov2", "vit", "qwen2_moe"]
THEIR_MAPS = {
    "bert": ["query", "value", "output.dense"],
    "roberta": ["query", "key"],
    "gpt2": ["c_attn"],
    "distilbert": ["q_lin", "lin1"],
    "modernbert": ["Wqkv", "Wi"],
}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "rank-stabilised": {"method": "lora", "rank_stabilized": True},
    "dora": {"method": "dora"},
}


def base_folder(family: str, folder: Path, task: str | None = None) -> Path:
    case = Case(family, task or main_task(family), dict(row(family)["config"]), "plain")
    reference(case).save_pretrained(folder)
    return folder


def theirs_of(folder: Path, model: Model) -> torch.nn.Module:
    name = converter_for(model.family).architectures[model.task]
    return getattr(transformers, name).from_pretrained(folder).eval()


def drawn(model: torch.nn.Module) -> None:
    """Give everything that is trained values that show."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def compare(ours: Model, theirs: torch.nn.Module, *, with_loss: bool = True) -> None:
    batch = verification_batch(ours)
    if not with_loss or ours.family == "cpmant":
        batch.pop("labels", None)
    our, their = ours(**batch), theirs(**batch)
    first = our.logits if our.logits is not None else our.last_hidden_state
    second = their.logits if getattr(their, "logits", None) is not None else their.last_hidden_state
    mask = batch.get("attention_mask")
    if mask is not None and mask.shape == first.shape[:2] and ours.task != "seq2seq_lm":
        first, second = first[mask.bool()], second[mask.bool()]
    torch.testing.assert_close(first, second, rtol=0, atol=TOLERANCE * max(1.0, float(second.abs().max())))
    for output in (first, second):
        if output.requires_grad:
            output.mul(torch.linspace(-1, 1, output.numel()).view_as(output)).mean().backward()


def gradients(model: Model, folder: Path) -> dict[str, torch.Tensor]:
    """Return the adapter's gradients by PEFT's names: written as an adapter is."""
    with torch.no_grad():
        for _, part in low_rank_parts(model):
            for parameter in part.parameters():
                parameter.copy_(parameter.grad)
    save_adapter(model, folder)
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_here_is_equal_in_peft(family: str, kind: str, tmp_path: Path) -> None:
    folder = base_folder(family, tmp_path / "base")
    ours = modelzoo.from_pretrained(folder, task=main_task(family))
    add_adapter(ours, AdapterConfig(r=3, alpha=5, **KINDS[kind]))
    drawn(ours)
    save_adapter(ours, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter", is_trainable=True).eval()
    compare(ours, theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad and parameter.grad is not None:
                parameter.copy_(parameter.grad)
    theirs.save_pretrained(tmp_path / "gradients of theirs")
    expected = load_file(tmp_path / "gradients of theirs" / "adapter_model.safetensors")
    found = gradients(ours, tmp_path / "gradients of ours")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        wide = expected[name]
        if value.shape == wide.shape and name.endswith("lora_B.weight"):
            wide = wide * (value != 0)  # in one module of theirs, rows of a map have gradients for ranks of its neighbours as well
        if "classifier" not in name:
            torch.testing.assert_close(value, wide, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "targets"),
    [("bert", "all-linear"), ("gpt2", ["c_attn", "c_fc"]), ("llama", ["q_proj", "down_proj"]), ("t5", ["q", "v", "wi_0", "wo"])],
)
def test_what_peft_made_is_equal_here(family: str, targets: Any, kind: str, tmp_path: Path) -> None:
    folder = base_folder(family, tmp_path / "base")
    ours = modelzoo.from_pretrained(folder, task=main_task(family))
    options = {"use_dora": kind == "dora", "use_rslora": kind == "rank-stabilised"}
    plain = (
        ["q", "v", "wi", "wo"] if family == "t5" and not hasattr(ours.encoder.layers[0].feed_forward.sublayer, "gate") else targets
    )
    config = LoraConfig(r=3, lora_alpha=5, target_modules=plain, fan_in_fan_out=family == "gpt2", **options)
    theirs = get_peft_model(theirs_of(folder, ours), config).eval()
    drawn(theirs)
    theirs.save_pretrained(tmp_path / "adapter")
    load_adapter(ours, tmp_path / "adapter")
    compare(ours, theirs)
    save_adapter(ours, tmp_path / "again")
    again = modelzoo.from_pretrained(folder, task=main_task(family))
    load_adapter(again, tmp_path / "again")
    compare(again, theirs)


def test_maps_of_one_module_may_change_apart(tmp_path: Path) -> None:
    folder = base_folder("gpt2", tmp_path / "base")
    ours = modelzoo.from_pretrained(folder)
    add_adapter(ours, AdapterConfig(method="lora", r=2, targets=["query", "value", "up"]))
    drawn(ours)
    save_adapter(ours, tmp_path / "adapter")
    compare(ours, PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter").eval())
    again = modelzoo.from_pretrained(folder)
    load_adapter(again, tmp_path / "adapter")
    assert {name for name, _ in low_rank_parts(again)} == {name for name, _ in low_rank_parts(ours)}
    saved = dict(ours.named_parameters())
    assert all(torch.equal(parameter, saved[name]) for name, parameter in again.named_parameters())


@pytest.mark.parametrize(("family", "table"), [("llama", "token"), ("gpt2", "position"), ("bert", "token")])
def test_a_table_and_a_head_change_as_in_peft(family: str, table: str, tmp_path: Path) -> None:
    folder = base_folder(family, tmp_path / "base")
    ours = modelzoo.from_pretrained(folder, task=main_task(family))
    head = ["head"] if family == "llama" and getattr(ours, "head", None) is not None else []
    add_adapter(ours, AdapterConfig(method="lora", r=2, targets=["query", table, *head]))
    drawn(ours)
    save_adapter(ours, tmp_path / "adapter")
    compare(ours, PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter").eval())


def test_a_changed_head_trains_a_language_model_as_in_peft(tmp_path: Path) -> None:
    folder = base_folder("llama", tmp_path / "base")
    ours = modelzoo.from_pretrained(folder, task="causal_lm")
    add_adapter(ours, AdapterConfig(method="lora", r=2, targets=["head"]))
    drawn(ours)
    save_adapter(ours, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter").eval()
    batch = verification_batch(ours)
    loss = ours.train()(**batch).loss
    torch.testing.assert_close(loss, theirs(**batch).loss, rtol=0, atol=TOLERANCE)
    loss.backward()
    assert float(ours.head.adapter.b.grad.abs().max()) > 0


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "distilbert", "modernbert"])
def test_a_new_head_is_one_of_the_modules_to_save(family: str, tmp_path: Path) -> None:
    folder = base_folder(family, tmp_path / "base", "classification")
    ours = modelzoo.from_pretrained(folder, task="classification", num_labels=5)
    add_adapter(ours, AdapterConfig(method="lora", r=2))
    drawn(ours)
    save_adapter(ours, tmp_path / "adapter")

    def new_base() -> torch.nn.Module:
        name = converter_for(family).architectures["classification"]
        base = getattr(transformers, name).from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
        base.config.pad_token_id = ours.config.pad_token_id or 0
        return base

    compare(ours, PeftModel.from_pretrained(new_base(), tmp_path / "adapter").eval(), with_loss=False)
    again = modelzoo.from_pretrained(tmp_path / "adapter")
    assert (again.task, again.config.num_labels) == ("classification", 5)
    config = LoraConfig(task_type="SEQ_CLS", target_modules=THEIR_MAPS[family], r=2, fan_in_fan_out=family == "gpt2")
    theirs = get_peft_model(new_base(), config)
    drawn(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    compare(modelzoo.from_pretrained(tmp_path / "theirs"), theirs.eval(), with_loss=False)
