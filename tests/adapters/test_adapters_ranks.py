"""Adapters of every family over a tensor axis of two ranks, and sharded: loss and gradients are those of one process."""

import copy
import traceback

import torch
from distributed import run_distributed
from harness import Case, cases, made_here, main_task
from test_conformance_tensor_parallel import without_dropout

from modelzoo.adapters import AdapterConfig, add_adapter
from modelzoo.config.parallel import ParallelConfig
from modelzoo.models.model import Model
from modelzoo.runtime import connect, full_tensor, prepare
from modelzoo.verification import verification_batch

TOLERANCE = 1e-5
WITH_PREFIX = ("gpt2", "llama", "mistral", "qwen2_moe", "t5")
MAIN = [case for case in cases() if case.task == main_task(case.family)]
CHOSEN = [case for case in MAIN if case.name == "plain" or "key_value_heads" in case.name]


def adapted(case: Case, method: str) -> Model:
    model = without_dropout(made_here(case))
    known = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if method == "tables":
        targets = [name for name in ("query", "token", "head") if name in known and (name != "head" or case.family == "llama")]
        config = AdapterConfig(method="lora", r=2, targets=tuple(targets))
    elif method == "prefix":
        config = AdapterConfig(method="prefix", num_virtual_tokens=3, prefix_projection=case.family != "t5")
    else:
        config = AdapterConfig.model_validate({"method": method, "r": 2})
    add_adapter(model, config)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def differences(case: Case, world, method: str, **layout: int) -> list[str]:
    alone = adapted(case, method)
    model = prepare(copy.deepcopy(alone), world, ParallelConfig(**layout))
    batch = verification_batch(alone)
    found = {}
    for each in (alone, model):
        output = each.train()(**batch)
        value = output.loss
        if value is None:
            scores = output.logits if output.logits is not None else output.last_hidden_state
            value = scores.square().mean()
        (value if each is alone else value / world.data_size).backward()
        found.setdefault("loss", []).append(value.detach())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in alone.named_parameters():
        if parameter.grad is not None:
            found[name] = [parameter.grad, full_tensor(gradients[name])]
        elif gradients[name] is not None:
            return [f"{case} {method}: {name} is frozen and has a gradient"]
    lines = []
    for name, (expected, value) in found.items():
        difference = float((value - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        if not difference <= TOLERANCE:
            lines.append(f"{case} {method} {layout}: {name} is off by {difference:.1e}")
    return lines


def compare(chosen: list[Case]) -> None:
    lines = []
    with connect(device="cpu") as world:
        for number, case in enumerate(chosen):
            methods = ("lora", "dora", "tables")
            chosen_methods = methods if case.family == "llama" else methods[number % 3 : number % 3 + 1]
            for method in (*chosen_methods, *(["prefix"] if case.family in WITH_PREFIX else [])):
                if method == "tables" and not hasattr(made_here(case), "embeddings"):
                    continue
                try:
                    lines += differences(case, world, method, tensor=2, zero=3 * (number % 2))
                    if number % 8 == 0:
                        lines += differences(case, world, method, zero=3)
                except Exception:
                    lines.append(f"{case} {method}: {traceback.format_exc(limit=-3)}")
    assert not lines, "\n".join(lines)


def test_adapters_on_two_ranks_are_those_of_one_process() -> None:
    run_distributed(compare, 2, CHOSEN, timeout_s=240)
