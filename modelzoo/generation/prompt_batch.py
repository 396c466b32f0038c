"""A batch of prompts, and what a model is told of them beside their ids."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Prompts"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """A batch of prompts."""

    ids: Tensor
    """(B, T) int64."""
    mask: Tensor | None
    """(B, T) bool, True where there is a token; None when all are."""
    marks: Mapping[str, Any] = field(default_factory=dict)
    """What else the model is told of each row, by `prefill`'s argument: tensors (B, ...), or named tuples of such."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """What it is told of all rows together."""
    words: tuple[Mapping[int, str], ...] = ()
    """Texts of ids that each row has beside the tokenizer's; empty for none."""
    begins_text: bool = False
    """Whether what is written is a text of its own, rather than a continuation."""

    def repeated(self, count: int) -> "Prompts":
        """Return each row `count` times, its copies next to each other."""
        if count == 1:
            return self
        mask = None if self.mask is None else self.mask.repeat_interleave(count, 0)
        marks = _each(self.marks, lambda tensor: tensor.repeat_interleave(count, 0))
        words = tuple(each for each in self.words for _ in range(count))
        return Prompts(self.ids.repeat_interleave(count, 0), mask, marks, self.shared, words, self.begins_text)

    def to(self, device: torch.device) -> "Prompts":
        """Return the same on another device."""
        mask = None if self.mask is None or bool(self.mask.all()) else self.mask.to(device)
        marks, shared = (_each(marks, lambda tensor: tensor.to(device)) for marks in (self.marks, self.shared))
        return Prompts(self.ids.to(device, torch.int64), mask, marks, shared, self.words, self.begins_text)

    def row(self, index: int) -> list[int]:
        """Return one prompt's ids without padding."""
        ids = self.ids[index] if self.mask is None else self.ids[index][self.mask[index]]
        return cast(list[int], ids.tolist())


def _each(marks: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Change every tensor of some marks."""

    def changed(value: Any) -> Any:
        if value is None or isinstance(value, Tensor):
            return None if value is None else change(value)
        parts = [change(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)

    return {name: changed(value) for name, value in marks.items()}
