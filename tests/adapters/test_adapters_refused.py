"""What an adapter cannot be, and files that hold none: one error each, and nothing was changed."""

import json
import time
from pathlib import Path

import pytest
import torch
from harness import Case, made_here, row
from safetensors.torch import load_file, save_file

from modelzoo.adapters import AdapterConfig, add_adapter, load_adapter, merge_adapter, save_adapter
from modelzoo.adapters.peft_file import Scale
from modelzoo.errors import CheckpointError, ConfigError, SaveError
from modelzoo.models.model import Model


def model_of(family: str = "bert", task: str = "masked_lm", **changes: object) -> Model:
    return made_here(Case(family, task, {**row(family)["config"], **changes}, "plain"))


def trained(model: Model, **options: object) -> Model:
    add_adapter(model, AdapterConfig.model_validate({"method": "lora", "r": 2, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_adapter(trained(model_of()), tmp_path / "adapter")
    return tmp_path / "adapter"


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"adapter.method is null, which trains the whole model; choose lora, dora, bias, prompt or prefix"),
        ({"method": "lora", "targets": ["quer"]}, r"quer: no map or table has this name; did you mean 'query'\?"),
        (
            {"method": "lora", "targets": ["self_attention"]},
            r"self_attention: is a SelfAttentionBlock, .* expected maps or tables: ",
        ),
        ({"method": "dora", "targets": ["token"]}, r"embeddings.token: dora changes maps, found a table; use lora"),
        ({"method": "lora", "train_also": ["nothing"]}, r"adapter.train_also: 'nothing' is no part of this Bert"),
        ({"method": "lora", "r": 64}, r"adapter.targets=auto: no map of the blocks is wider than r=64; use a smaller r"),
        (
            {"method": "lora", "r": 15, "targets": ["query", "key", "value", "output", "up", "down", "token"]},
            r"use a smaller r or fewer",
        ),
        ({"method": "lora", "targets": ["dense"], "train_also": ["head"]}, r"head.dense: is trained whole \(train_also"),
    ],
)
def test_an_adapter_that_does_not_fit_changes_nothing(options: dict[str, object], message: str) -> None:
    model = model_of()
    with pytest.raises(ConfigError, match=message):
        add_adapter(model, AdapterConfig.model_validate(options))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any("adapter" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("targets", [(), ("auto", "query")])
def test_targets_that_contradict_are_refused(targets: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="targets"):
        AdapterConfig(method="lora", targets=targets)


def test_a_second_adapter_is_refused_and_so_is_saving_the_model() -> None:
    model = trained(model_of())
    with pytest.raises(ConfigError, match=r"Bert has an adapter; merge it with merge_adapter"):
        add_adapter(model, AdapterConfig(method="lora"))
    with pytest.raises(SaveError, match=r"save_adapter, or put it into the weights with merge_adapter first"):
        model.save_pretrained("unused")
    assert not Path("unused").exists()


def test_an_adapter_that_was_not_trained_is_not_written(tmp_path: Path) -> None:
    model = model_of()
    add_adapter(model, AdapterConfig(method="lora", r=2))
    with pytest.raises(SaveError, match=r"all 12 changes are zero: the adapter was not trained"):
        save_adapter(model, tmp_path / "adapter")
    with torch.no_grad():
        next(parameter for parameter in model.parameters() if parameter.requires_grad).fill_(float("nan"))
    with pytest.raises(SaveError, match=r"expected finite values, found NaN or infinity in 1 tensors"):
        save_adapter(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_what_is_there_is_not_overwritten(folder: Path) -> None:
    model = trained(model_of())
    with pytest.raises(SaveError, match=r"expected an empty folder or nothing"):
        save_adapter(model, folder)
    before = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "notes.txt").write_text("mine")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(2)
    save_adapter(model, folder, overwrite=True)
    assert (folder / "adapter_model.safetensors").read_bytes() != before
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_table_that_scores_as_well_is_not_merged() -> None:
    model = trained(model_of("gpt2", "causal_lm"), targets=["token"])
    with pytest.raises(ConfigError, match=r"embeddings.token: the table also scores the vocabulary \(tie_word_embeddings\)"):
        merge_adapter(model)
    assert any("adapter" in name for name, _ in model.named_parameters())
    apart = trained(model_of("llama", "causal_lm", tie_word_embeddings=False), targets=["token", "head"])
    merge_adapter(apart)
    assert not any("adapter" in name for name, _ in apart.named_parameters())


NAME = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({NAME: None}, r"attention.self.query.lora_A.weight: expected \[2, 16\], found nothing"),
        ({NAME: torch.zeros(3, 16)}, r"attention.self.query.lora_A.weight: expected \[2, 16\], found \[3, 16\]"),
        ({NAME: torch.full((2, 16), float("inf"))}, r"expected finite floats of 1 or 2 dimensions, found torch.float32 \[2, 16\]"),
        ({"lora_A.weight": torch.zeros(2, 16)}, r"lora_A.weight: expected a name that begins with base_model.model."),
        ({NAME.replace("query", "quary"): torch.zeros(2, 16)}, r"attention.self.quary: expected a map or table of the model"),
        ({"base_model.model.bert.strange": torch.zeros(2)}, r"bert.strange: expected a tensor of an adapter or of the model"),
    ],
)
def test_a_file_with_other_tensors_is_refused_whole(folder: Path, changes: dict[str, torch.Tensor | None], message: str) -> None:
    change_tensors(folder, **changes)
    model = model_of()
    with pytest.raises(CheckpointError, match=message):
        load_adapter(model, folder)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_empty_file_is_refused(folder: Path) -> None:
    save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"expected an adapter's tensors, found none: the file is empty"):
        load_adapter(model_of(), folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, r"peft_type: expected LORA, PROMPT_TUNING or PREFIX_TUNING, found 'IA3', which is not built"),
        ({"r": 0}, r"r: expected a whole number from 1, found 0"),
        ({"lora_alpha": "x"}, r"lora_alpha: expected a number above 0, found 'x'"),
        ({"target_parameters": ["experts.down"]}, r"target_parameters=\['experts.down'\]: is not built"),
    ],
)
def test_a_config_that_asks_for_more_is_refused_by_name(folder: Path, changes: dict[str, object], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        load_adapter(model_of(), folder)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a|a)+b", r"with three repetitions, none of a group, found '\(a\|a\)\+b'"),
        (".*" * 40 + "!", r"expected a pattern of module names of at most 1000 characters"),
        ("a" * 2000, r"expected a pattern of module names of at most 1000 characters"),
        ("(", r"expected a pattern of module names, found missing \)"),
    ],
    ids=["of a group", "many", "long", "none"],
)
def test_a_pattern_that_could_take_years_is_refused(folder: Path, pattern: str, message: str) -> None:
    change_config(folder, rank_pattern={pattern: 2})
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=message):
        load_adapter(model_of(), folder)
    assert time.monotonic() - started < 1


def test_patterns_that_peft_users_write_are_read() -> None:
    scale = Scale({"r": 8, "lora_alpha": 8, "rank_pattern": {"^base.*layers.[0-9]+.*q_proj": 2, "v_proj": 4}, "alpha_pattern": {}})
    names = ["base.model.layers.12.self_attn.q_proj", "base.model.layers.1.self_attn.v_proj", "base.k_proj"]
    assert [scale(name)[0] for name in names] == [2, 4, 8]
    started = time.monotonic()
    Scale({"r": 8, "lora_alpha": 8, "rank_pattern": {".*a.*a.*!": 2}})("a" * 100)
    assert time.monotonic() - started < 0.5


def test_experts_are_refused_by_name() -> None:
    model = made_here(Case("mixtral", "causal_lm", row("mixtral")["config"], "plain"))
    with pytest.raises(ConfigError, match=r"experts: is a Experts, which has no change of low rank"):
        add_adapter(model, AdapterConfig(method="lora", r=2, targets=["experts"]))
