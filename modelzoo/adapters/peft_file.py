"""A PEFT folder in memory: its config, its tensors, and what its config says of each module."""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from modelzoo.adapters.peft_write import TASK_TYPES
from modelzoo.errors import CheckpointError
from modelzoo.hub.files import shown

__all__ = ["AdapterFile", "Scale", "lora_problems"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFile:
    """An adapter's folder, read and checked as far as that goes without the base."""

    folder: Path
    values: Mapping[str, Any]
    """Of adapter_config.json."""
    tensors: Mapping[str, Tensor]
    """By PEFT's names without its prefix."""
    own: Mapping[str, Any]
    """Of modelzoo.json; empty for an adapter that was made elsewhere."""

    @property
    def base(self) -> str | None:
        """Folder or hub id of the base."""
        return self.values.get("base_model_name_or_path")

    @property
    def task(self) -> str | None:
        """What the adapter is for; None where its file does not say."""
        named = self.own.get("task")
        return named or next((task for task, name in TASK_TYPES.items() if name and name == self.values.get("task_type")), None)

    @property
    def scale_of(self) -> "Scale":
        """Rank and scale of each module, as the config's patterns give them."""
        return Scale(self.values)

    def num_labels(self) -> int | None:
        """Return the outputs of a head that stands in the file, by the names that transformers gives to heads."""
        heads = ("classifier", "score", "classifier.out_proj", "classifier.dense.out_proj", "qa_outputs")
        return next((len(self.tensors[f"{name}.weight"]) for name in heads if f"{name}.weight" in self.tensors), None)


class Scale:
    """PEFT's rank and scale of a module: the first pattern that matches its path, or the common value.

    Args:
        values: Of adapter_config.json.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __call__(self, theirs: str) -> tuple[int, float]:
        """Return rank and scale."""
        rank, alpha = self._find("rank_pattern", "r", theirs), self._find("alpha_pattern", "lora_alpha", theirs)
        return int(rank), alpha / (math.sqrt(rank) if self._values.get("use_rslora") else rank)

    def _find(self, pattern: str, common: str, theirs: str) -> float:
        for key, value in (self._values.get(pattern) or {}).items():
            if _pattern(key).match(theirs):
                return float(value)
        return float(self._values[common])


def lora_problems(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the numbers of a LORA in adapter_config.json."""
    problems = []
    rank, alpha, dropout = values.get("r"), values.get("lora_alpha"), values.get("lora_dropout") or 0.0
    if not _is_rank(rank):
        problems.append(f"r: expected a whole number from 1, found {shown(repr(rank))}")
    if not _is_scale(alpha):
        problems.append(f"lora_alpha: expected a number above 0, found {shown(repr(alpha))}")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        problems.append(f"lora_dropout: expected a number from 0 to below 1, found {shown(repr(dropout))}")
    for name, what, is_one in (("rank_pattern", "whole numbers from 1", _is_rank), ("alpha_pattern", "numbers above 0", _is_scale)):
        found = values.get(name) or {}
        if not isinstance(found, dict) or not all(map(is_one, found.values())):
            problems.append(f"{name}: expected an object of {what} by module, found {shown(repr(found))}")
    return problems


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _is_scale(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


_REPEATS = re.compile(r"[*+{]")
_LONGEST_PATTERN = 1000


@functools.cache
def _pattern(key: str) -> re.Pattern[str]:
    """Compile a pattern of a file; one that could take years to match, as `(a+)+` does, is refused."""
    if len(key) > _LONGEST_PATTERN or len(_REPEATS.findall(key)) > 3 or re.search(r"\)[*+{]", key):
        expected = f"a pattern of module names of at most {_LONGEST_PATTERN} characters with three repetitions, none of a group"
        raise CheckpointError(f"adapter_config.json: rank_pattern, alpha_pattern: expected {expected}, found {shown(repr(key))}")
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except re.error as error:
        raise CheckpointError(
            f"adapter_config.json: {shown(repr(key))}: expected a pattern of module names, found {error}"
        ) from None
