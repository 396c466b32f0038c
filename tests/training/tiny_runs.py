"""A tiny BERT folder, rows to learn from, and settings for runs of a few steps."""

import json
import random
from pathlib import Path
from typing import Any

import torch

from modelzoo.config import RunSettings
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.training import SilentProgress, StepReport

WORDS = ["the", "cat", "dog", "mat", "sat", "ran", "on", "is", "red", "blue", "who", "what", "true", "false", "not", "fast"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def model_folder(folder: Path, *, dropout: float = 0.1) -> Path:
    """Write a BERT of 2 layers and width 16 with its vocabulary."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=32,
        max_positions=64,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )
    Bert.from_config(config, "masked_lm").save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return folder


def rows(count: int, seed: int = 0, longest: int = 12) -> list[dict[str, Any]]:
    """Questions whose label is whether the passage has the word that the question asks for."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        passage = [generator.choice(WORDS) for _ in range(generator.randint(3, longest))]
        word = generator.choice(WORDS)
        made.append({"question": f"is {word}", "passage": " ".join(passage), "label": word in passage})
    return made


def write_rows(path: Path, some: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return path


class Notes(SilentProgress):
    """Keeps what a run says of itself."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.is_closed = False

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def step(self, report: StepReport) -> None:
        self.steps.append(report.step)

    def close(self) -> None:
        self.is_closed = True


def settings_for(folder: Path, **changes: Any) -> RunSettings:
    """Settings of a run in `folder`, which gets a model and data on the first call; changes as `train__batch_size=4`."""
    if not (folder / "model").exists():
        model_folder(folder / "model")
        write_rows(folder / "train.jsonl", rows(22))
        write_rows(folder / "validation.jsonl", rows(9, seed=1))
    return run_settings(folder, "classification", 32, changes)


def run_settings(folder: Path, task: str, max_length: int, changes: dict[str, Any]) -> RunSettings:
    """Settings of a run of a few steps on the model and the data of a folder; changes as `train__batch_size`."""
    values: dict[str, Any] = {
        "recipe": "tiny",
        "model": {"name": str(folder / "model"), "task": task},
        "data": {
            "train": str(folder / "train.jsonl"),
            "validation": str(folder / "validation.jsonl"),
            "max_length": max_length,
        },
        "train": {"epochs": 2.0, "batch_size": 4, "seed": 7},
        "optimizer": {"lr": 1e-2},
        "schedule": {"warmup": 0.1},
        "evaluation": {"every": "1ep", "batch_tokens": 64},
        "checkpoint": {"every": 5, "keep_last": 20},
        "output": {"folder": str(folder / "runs")},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values.setdefault(section, {})[name] = value
    return RunSettings.model_validate(values)
