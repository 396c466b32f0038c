"""What the tests of runs with adapters share: their settings, runs in processes, and what has to be equal."""

from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from test_runs import StopAt
from tiny_runs import Notes, settings_for

import modelzoo
from modelzoo.config import RunSettings
from modelzoo.training import RunResult, SilentProgress, resume, train

__all__ = ["WEIGHTS", "assert_equal_in_peft", "assert_equal_tensors", "start", "stopped_and_resumed", "with_adapter"]

WEIGHTS = "final/adapter_model.safetensors"


def with_adapter(folder: Path, method: str = "lora", **changes: Any) -> RunSettings:
    adapter = {"adapter__method": method, "adapter__r": 4, "adapter__train_also": ["pooler"]}
    return settings_for(folder, **{"optimizer__lr": 1e-2, **adapter, **changes})


def start(folder: str, name: str, method: str, layout: dict[str, Any]) -> None:
    """Train in this process of a run, without dropout, and keep the line that says what is trained."""
    changes: dict[str, Any] = {
        "model__dropout": 0.0,
        "train__micro_batch_size": 2,
        "optimizer__lr": 1e-4,
        "output__name": name,
        "train__epochs": 1.0,
    }
    train(with_adapter(Path(folder), method, **changes, **layout), progress=(notes := Notes()))
    if notes.text:
        told = next(line for line in notes.text.splitlines() if line.startswith("trainable"))
        (Path(folder) / f"{name}.txt").write_text(told)


def assert_equal_tensors(ours: Path, theirs: Path, *, atol: float = 0.0) -> None:
    """Compare two files of tensors: the same names in the same order, and values.

    Args:
        ours: A safetensors file.
        theirs: Another.
        atol: Largest difference that counts as equal.
    """
    found, expected = load_file(ours), load_file(theirs)
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=atol)


def assert_equal_in_peft(final: Path, base: Path) -> None:
    """Compare the scores of an adapter for classification with those that peft gives on transformers' base."""
    theirs = PeftModel.from_pretrained(transformers.BertForSequenceClassification.from_pretrained(base), final).eval()
    batch = {
        "input_ids": torch.tensor([[2, 6, 7, 8, 3], [2, 9, 10, 3, 0]]),
        "attention_mask": torch.tensor([[1] * 5, [1] * 4 + [0]]),
    }
    torch.testing.assert_close(modelzoo.from_pretrained(final)(**batch).logits, theirs(**batch).logits, rtol=0, atol=1e-5)


def stopped_and_resumed(settings: RunSettings, step: int = 7) -> tuple[RunResult, set[str]]:
    """Return a run that was stopped after a step and went on, and the names of the values that its state had."""
    stopped = train(settings, progress=StopAt(step))
    saved = set(load_file(stopped.folder / "checkpoints" / f"step-{step}" / "model.safetensors"))
    return resume(stopped.folder, progress=SilentProgress()), saved
