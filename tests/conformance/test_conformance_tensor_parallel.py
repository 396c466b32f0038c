"""Every family on a tensor axis of two ranks: logits, loss and gathered gradients are those of one process."""

import copy
import traceback

import pytest
import torch
from distributed import run_distributed
from harness import Case, cases, made_here, main_task

from modelzoo.config.parallel import ParallelConfig
from modelzoo.models.model import Model
from modelzoo.runtime import connect, full_tensor, prepare
from modelzoo.verification import verification_batch

TOLERANCE = 1e-5
CASES = cases()
MAIN = [case for case in CASES if case.task == main_task(case.family)]
QUICK = [case for case in MAIN if case.name == "plain" or case.name.startswith("tie") or "key_value_heads" in case.name]


def without_dropout(model: Model) -> Model:
    """Ranks of a tensor axis draw for heads of their own, so dropout is another draw than that of one process."""
    for module in model.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def differences(case: Case, world, zero: int) -> list[str]:
    """Return a line for each value that is not that of one process."""
    alone = without_dropout(made_here(case)).eval()
    model = prepare(copy.deepcopy(alone), world, ParallelConfig(tensor=2, zero=zero))
    batch = verification_batch(alone)
    found = {}
    expected_output, output = alone(**batch), model(**batch)
    for name in ("logits", "start_logits", "end_logits", "last_hidden_state"):
        expected = getattr(expected_output, name)
        if expected is not None:
            found[name] = getattr(output, name), expected
    if "labels" in batch:
        losses = [each.train()(**batch).loss for each in (alone, model)]
        found["loss"] = losses[1], losses[0]
        for loss in losses:
            loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = full_tensor(gradients[name]), parameter.grad
    lines = []
    for name, (value, expected) in found.items():
        difference = float((value - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        if not difference <= TOLERANCE:
            lines.append(f"{case} zero={zero}: {name} is off by {difference:.1e}")
    return lines


def compare(chosen: list[Case]) -> None:
    lines = []
    with connect(device="cpu") as world:
        for number, case in enumerate(chosen):
            torch.manual_seed(0)
            try:
                lines += differences(case, world, zero=3 * (number % 2))
            except Exception:
                lines.append(f"{case}: {traceback.format_exc(limit=-3)}")
    assert not lines, "\n".join(lines)


def test_every_family_on_a_tensor_axis_is_that_of_one_process() -> None:
    run_distributed(compare, 2, QUICK)


@pytest.mark.slow
def test_every_task_and_variant_on_a_tensor_axis_is_that_of_one_process() -> None:
    run_distributed(compare, 2, CASES, timeout_s=300)
