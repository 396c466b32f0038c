"""Every family takes an adapter: nothing changes at first, it trains, comes back from its file bit for bit, and merges."""

from pathlib import Path

import pytest
import torch
from harness import Case, made_here, main_task, row

from modelzoo.adapters import AdapterConfig, add_adapter, load_adapter, merge_adapter, save_adapter, trained_parts
from modelzoo.errors import ConfigError
from modelzoo.models.auto import FAMILIES
from modelzoo.models.model import Model, ModelOutput
from modelzoo.verification import verification_batch

TOLERANCE = 1e-6


def plain(family: str) -> Model:
    return made_here(Case(family, main_task(family), row(family)["config"], "plain"))


def outputs(model: Model, batch: dict) -> torch.Tensor:
    found: ModelOutput = model(**batch)
    for each in (found.logits, found.start_logits, found.last_hidden_state):
        if each is not None:
            return each.detach()
    raise AssertionError(found)


def step(model: Model, batch: dict) -> None:
    """Take one step on the loss, or on the sum of the scores where there is none; B of a new adapter has a gradient at once."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    found: ModelOutput = model(**batch)
    loss = found.loss if found.loss is not None else (found.logits if found.logits is not None else found.last_hidden_state).sum()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_trains_merges_and_comes_back(family: str, method: str, tmp_path: Path) -> None:
    model = plain(family).requires_grad_(False)  # a convolution takes another path where its weights get gradients
    batch = verification_batch(model)
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    before = outputs(model, batch)
    add_adapter(model, AdapterConfig(method=method, r=3, alpha=7))
    assert torch.equal(outputs(model, batch), before)
    assert set(trained_parts(model)) <= {"adapter", "head"}
    step(model, batch)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) <= parameter.requires_grad, name
        if name in base and not parameter.requires_grad:
            assert torch.equal(parameter, base[name]), name
    after = outputs(model, batch)
    assert not torch.equal(after, before)
    report = save_adapter(model, tmp_path / "adapter")
    assert report.num_values >= sum(trained_parts(model).values())

    again = plain(family)
    load_adapter(again, tmp_path / "adapter")
    saved = dict(model.named_parameters())
    assert {name for name, _ in again.named_parameters()} == set(saved)
    assert all(torch.equal(parameter, saved[name]) for name, parameter in again.named_parameters())
    assert torch.equal(outputs(again, batch), after)
    merge_adapter(again)
    assert {name for name, _ in again.named_parameters()} == set(base)
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert float((outputs(again, batch) - after).abs().max()) <= TOLERANCE * max(1.0, float(after.abs().max())) * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_alone_are_trained(family: str) -> None:
    model = plain(family)
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    biases = {name for name in base if name.endswith("bias")}
    if not biases:
        with pytest.raises(ConfigError, match=r"adapter.method=bias: \w+ has no biases; use lora"):
            add_adapter(model, AdapterConfig(method="bias"))
        return
    add_adapter(model, AdapterConfig(method="bias"))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert biases <= trained
    assert all(name.startswith("head.") for name in trained - biases)
    step(model.train(), verification_batch(model))
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, base[name])}
    assert moved
    assert moved <= trained
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name not in trained)
