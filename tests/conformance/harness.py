"""What every registered family is tested with: its row of data, and a folder that transformers saved from it.

A family's row is `families/<model_type>.yaml`: a tiny config in Hugging Face's words, and the variants of it that change the
forward; and the published checkpoints, by the fields that give their sizes. A new family adds a row and no test code. A row that
says `reference: none` is of a family that transformers does not have: it is not compared with transformers here but with a naive
model in its own tests, and its folders are made by ourselves.
"""

import copy
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from modelzoo.converters import converter_for
from modelzoo.layers import skip_initialization
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.models.model import Model

ROWS = Path(__file__).parent / "families"
MADE = tempfile.TemporaryDirectory(prefix="modelzoo-conformance-")
"""Folders that `saved` copies from, each written once a process."""


@dataclass(frozen=True)
class Case:
    """One tiny model of a family, for one task."""

    family: str
    task: str
    config: dict[str, Any]
    name: str

    def __str__(self) -> str:
        return f"{self.family}-{self.task}-{self.name}"


@cache
def _read_row(family: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROWS / f"{family}.yaml").read_text())
    return found


def row(family: str) -> dict[str, Any]:
    """Return a family's data, which the caller may change."""
    return copy.deepcopy(_read_row(family))


def has_reference(family: str) -> bool:
    """Return whether transformers has the family."""
    return bool(row(family).get("reference") != "none")


def main_task(family: str) -> str:
    """Return the task whose variants are tested: that of the language model, where there is one."""
    tasks = list(converter_for(family).architectures)
    return next((task for task in ("causal_lm", "seq2seq_lm", "masked_lm") if task in tasks), tasks[-1])


def cases() -> list[Case]:
    """Return every task with the plain config, and every variant with the main task."""
    found = []
    for family in FAMILIES:
        data = row(family)
        for task in converter_for(family).architectures:
            config = dict(data["config"])
            if task == "question_answering":
                config.pop("num_labels", None)  # a start and an end, whatever the labels of other tasks
            found.append(Case(family, task, config, "plain"))
        for variant in data["variants"]:
            found.append(Case(family, main_task(family), {**data["config"], **variant}, "_".join(variant)))
    return found


def reference(case: Case, *, seed: int = 0) -> torch.nn.Module:
    """Return transformers' model, its weights drawn wide enough that every part shows in the outputs."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = getattr(transformers, converter_for(case.family).architectures[case.task])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if is_norm else 0.0))
        for dead, used in (("cls.predictions.bias", "cls.predictions.decoder.bias"), ("lm_head.bias", "lm_head.decoder.bias")):
            names = dict(model.named_parameters())
            if dead in names and used in names:  # untied, transformers saves the first and computes with the second
                names[dead].copy_(names[used])
    return model


def made_here(case: Case, *, seed: int = 0) -> Model:
    """Return our own model, its weights drawn as those of `reference`."""
    torch.manual_seed(seed)
    converter, cls = converter_for(case.family), model_class(case.family)
    source = {**case.config, "model_type": case.family, "architectures": [converter.architectures[case.task]]}
    model = cls(cls.config_class(**converter.read_config(source, case.task), source=source), case.task).eval()
    std = 1.0 if case.config.get("length_scale", row(case.family).get("length_scale")) else 0.2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else std) + (1.0 if is_norm else 0.0))
    return model


def counted(family: str, config: dict[str, Any]) -> int:
    """Return how many parameters a config's model has, a decoder with its head, others without; nothing is allocated."""
    task = main_task(family) if main_task(family) in ("causal_lm", "seq2seq_lm") else "base"
    converter, cls = converter_for(family), model_class(family)
    values = converter.read_config(config, task)
    if converter.is_tied_by_tensors and "tie_word_embeddings" in config:
        values["tie_word_embeddings"] = config["tie_word_embeddings"]
    with torch.device("meta"), skip_initialization():
        model = cls(cls.config_class(**values), task)
    return sum(parameter.numel() for parameter in model.parameters())


@cache
def _save_once(family: str, task: str, config: str, seed: int) -> Path:
    case = Case(family, task, json.loads(config), "saved")
    model = reference(case, seed=seed) if has_reference(family) else made_here(case, seed=seed)
    folder = Path(tempfile.mkdtemp(dir=MADE.name))
    model.save_pretrained(folder)
    return folder


def saved(case: Case, folder: Path, *, seed: int = 0) -> Path:
    """Save transformers' model, or ours where it has none, into a folder."""
    made = _save_once(case.family, case.task, json.dumps(case.config), seed)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    torch.manual_seed(seed)  # whether it was made now or before
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    """Return a folder's config."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found
