"""Runs on a base in 8 or 4 bits: they learn as on floats but for rounding, resume exactly, and give plain PEFT folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_runs import WEIGHTS, assert_equal_tensors
from distributed import run_distributed
from peft import PeftModel
from safetensors.torch import load_file
from test_runs import StopAt
from tiny_language_runs import language_settings
from tiny_runs import Notes
from transformers import GPT2LMHeadModel

import modelzoo
from modelzoo.config import RunSettings
from modelzoo.plan import plan_training
from modelzoo.training import SilentProgress, evaluate, resume, train


@pytest.fixture(autouse=True)
def _has_torchao() -> None:
    pytest.importorskip("torchao", reason="the extra `quantized` is not installed")


def with_base(folder: Path, base: str | None, **changes: Any) -> RunSettings:
    adapter = {"adapter__method": "lora", "adapter__r": 4, "adapter__base": base}
    return language_settings(
        folder, "causal_lm", **{**adapter, "train__max_steps": 40, "train__epochs": 9.0, "optimizer__lr": 1e-2, **changes}
    )


def start(folder: str, name: str, changes: dict[str, Any]) -> None:
    train(
        with_base(
            Path(folder), "int8", output__name=name, train__micro_batch_size=2, train__max_steps=8, optimizer__lr=1e-4, **changes
        ),
        progress=SilentProgress(),
    )


def ends(folder: Path) -> tuple[float, float]:
    """Return the mean training loss of the first five steps of a run, and of the last five."""
    losses = [each["loss"] for each in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "loss" in each]
    return sum(losses[:5]) / 5, sum(losses[-5:]) / 5


@pytest.mark.parametrize(("base", "error"), [("int8", 0.01), ("nf4", 0.1)])
def test_a_run_learns_as_on_floats_and_gives_a_plain_adapter(tmp_path: Path, base: str, error: float) -> None:
    plain = train(with_base(tmp_path, None), progress=SilentProgress())
    result = train(with_base(tmp_path, base), progress=(notes := Notes()))
    size = {"int8": 0.2, "nf4": 0.1}[base]
    assert f"base     12 maps of 198,656 values in {base}: {size} MiB instead of 0.8" in notes.text
    first, last = ends(result.folder)
    assert last < first - 0.05
    assert 0 < abs(last - ends(plain.folder)[1]) < error
    final = result.folder / "final"
    ours = modelzoo.from_pretrained(final)
    theirs = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(tmp_path / "model"), final).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
    best = min(each["loss"] for each in result.history)
    assert 0 < abs(evaluate(result.folder)["loss"] - best) < error  # on the floats of the base


def test_resuming_and_computing_twice_are_exact(tmp_path: Path) -> None:
    whole = train(with_base(tmp_path, "int8"), progress=SilentProgress())
    stopped = train(with_base(tmp_path, "int8"), progress=StopAt(7))
    done = resume(stopped.folder, progress=SilentProgress())
    assert_equal_tensors(done.folder / WEIGHTS, whole.folder / WEIGHTS)
    again = train(with_base(tmp_path, "int8", parallel__recompute="blocks"), progress=SilentProgress())
    assert_equal_tensors(again.folder / WEIGHTS, whole.folder / WEIGHTS)


@pytest.mark.parametrize("layout", [{"parallel__zero": 3}, {"parallel__zero": 1}])
def test_two_ranks_with_the_base_whole_on_each_train_as_one(tmp_path: Path, layout: dict[str, Any]) -> None:
    with_base(tmp_path, "int8")
    start(str(tmp_path), "one", {})
    run_distributed(start, 2, str(tmp_path), "two", layout)
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    ours, theirs = load_file(two / WEIGHTS), load_file(one / WEIGHTS)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)


def test_half_precision_computes_with_the_stored_base(tmp_path: Path) -> None:
    result = train(with_base(tmp_path, "int8", parallel__precision="bfloat16"), progress=SilentProgress())
    first, last = ends(result.folder)
    assert last < first - 0.05


@pytest.mark.parametrize("changes", [{"parallel__tensor": 2}, {"parallel__compile": True}, {"memory__host": "1GiB"}])
def test_layouts_that_cut_or_move_weights_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    name = next(iter(changes)).replace("__host", "").replace("__", ".")
    with pytest.raises(ValueError, match=rf"adapter.base=int8 and {name} exclude each other: stored weights are whole"):
        with_base(tmp_path, "int8", **changes)


def test_the_plan_counts_stored_bytes(tmp_path: Path) -> None:
    plain, stored = (plan_training(with_base(tmp_path, base)).plan for base in (None, "int8"))
    lines = [{line.name: line.size_bytes for line in each.memory.tiers[each.machine.tier]} for each in (plain, stored)]
    assert plain.model.numel == stored.model.numel
    values, size = stored.model.stored
    assert values == 198_656
    assert lines[0]["parameters"] - lines[1]["parameters"] == 4 * values - size
    assert stored.model.trained == plain.model.trained
