"""What the hub has to know of a model besides its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelzoo.converters import FamilyConverter, Task, converter_for
from modelzoo.converters import Mapping as NameMapping

__all__ = ["ModelFacts"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's family, task and config as plain values; this package knows no model class.

    Attributes:
        family: Hugging Face's model_type.
        task: What the model is for.
        values: Our config's arguments by name, without `source`.
        source: The config.json that the model was read from, as it stood.
        source_folder: The folder that the tokenizer's files are in.
    """

    family: str
    task: Task
    values: Mapping[str, Any]
    source: Mapping[str, Any] | None = None
    source_folder: Path | None = None

    @property
    def converter(self) -> FamilyConverter:
        """The family's converter."""
        return converter_for(self.family)

    @property
    def mapping(self) -> NameMapping:
        """The table of tensor names for this model."""
        return self.converter.weights(self.task, tied=bool(self.values.get("tie_word_embeddings", True)), values=self.values)
