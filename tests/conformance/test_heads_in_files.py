"""A head is in the file, or new on purpose: no language model starts from a random one, and none is saved with a foreign one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from harness import Case, cases, config_of, has_reference, main_task, row, saved
from safetensors.torch import load_file, save_file

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError
from modelzoo.layers import Linear
from modelzoo.models.auto import FAMILIES
from modelzoo.models.model import Model
from modelzoo.verification import verify

PLAIN = [case for case in cases() if case.name == "plain" and case.task not in ("base", "encoder")]
OUTPUTS = ("head", "head.decoder", "head.output")
WRITERS = [family for family in FAMILIES if main_task(family) in ("causal_lm", "seq2seq_lm")]


def without_head(folder: Path, model: Model) -> list[str]:
    """Take a model's head out of its folder's file and return the keys."""
    mapping = model.facts().mapping
    groups = mapping.plan({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    keys = [mapping.written(name) for group in groups if group.ours[0].startswith("head.") for name in group.theirs]
    tensors = load_file(folder / "model.safetensors")
    doubles = [mapping.written(tie.alias) for tie in mapping.tied if mapping.written(tie.target) in keys]
    left = {name: tensor for name, tensor in tensors.items() if name not in (*keys, *doubles)}
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    return keys


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_head_that_the_config_promises_and_the_file_lacks_is_an_error(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    keys = without_head(tmp_path, modelzoo.from_pretrained(tmp_path, task=case.task))
    if not keys:
        modelzoo.from_pretrained(tmp_path)  # the head is the token table
        return
    with pytest.raises(CheckpointError) as error:
        modelzoo.from_pretrained(tmp_path)
    assert all(f"{key}: expected a tensor of shape" in str(error.value) for key in keys)
    assert f"config.json says {converter_for(case.family).architectures[case.task]}" in str(error.value)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("task", ["base", "classification", "question_answering"])
def test_a_language_models_head_never_starts_anew(family: str, task: str, tmp_path: Path) -> None:
    if task not in converter_for(family).architectures:
        pytest.skip(f"this family has no {task}")
    folder = saved(Case(family, main_task(family), {**row(family)["config"]}, "plain"), tmp_path)
    keys = without_head(folder, modelzoo.from_pretrained(folder))
    config = config_of(folder) | {"architectures": [converter_for(family).architectures[task]]}
    (folder / "config.json").write_text(json.dumps(config))
    if not keys:
        modelzoo.from_pretrained(folder, task=main_task(family))
        return
    with pytest.raises(CheckpointError, match=r"a language model's head is never drawn anew"):
        modelzoo.from_pretrained(folder, task=main_task(family))


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_head_of_another_size_is_never_saved(case: Case, tmp_path: Path) -> None:
    model = modelzoo.from_pretrained(saved(case, tmp_path / "theirs"), task=case.task)
    outputs = [name for name, module in model.named_modules() if name in OUTPUTS and isinstance(module, Linear)]
    if not outputs:
        pytest.skip("the head is the token table")
    parent, _, name = outputs[-1].rpartition(".")
    old = model.get_submodule(outputs[-1])
    setattr(model.get_submodule(parent), name, type(old)(old.in_features, old.out_features + 5, old.bias is not None))
    with pytest.raises(CheckpointError, match=rf"{outputs[-1]}.weight: expected shape .*, found \[{old.out_features + 5}, "):
        model.save_pretrained(tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def trained(model: Model, batch: dict[str, Any]) -> None:
    """Take one large step."""
    model.train()
    loss = model(**batch).loss
    assert loss is not None
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad / (parameter.grad.norm() + 1e-6)
    model.eval()


@pytest.mark.parametrize("family", [family for family in FAMILIES if has_reference(family)])
def test_a_trained_model_is_saved_with_all_that_it_learnt(family: str, tmp_path: Path) -> None:
    from modelzoo.verification import verification_batch

    task = main_task(family)
    model = modelzoo.from_pretrained(saved(Case(family, task, row(family)["config"], "plain"), tmp_path / "theirs"), task=task)
    batch = verification_batch(model)
    before = model(**batch)
    trained(model, batch)
    after = model(**batch)
    assert not torch.allclose(before.logits, after.logits, atol=1e-3)
    model.save_pretrained(tmp_path / "ours")
    again = modelzoo.from_pretrained(tmp_path / "ours")
    assert torch.equal(again(**batch).logits, after.logits)
    assert verify(tmp_path / "ours", tolerance=1e-5).is_equal
    name = converter_for(family).architectures[task]
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
