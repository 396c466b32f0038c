"""What a model can take, and which tasks have label names."""

from modelzoo.data import DataLimits
from modelzoo.models.model import Model

__all__ = ["LABEL_TASKS", "limits_of"]

LABEL_TASKS = {"classification": "label", "token_classification": "tags"}
"""Tasks whose labels have names, and the role of their column."""


def limits_of(model: Model) -> DataLimits:
    """Return what a model can take."""
    values = model.config.values()
    has_labels = model.task in LABEL_TASKS
    return DataLimits(
        vocab_size=model.config.vocab_size,
        max_length=model.max_length,
        num_labels=model.config.num_labels if has_labels else None,
        type_vocab_size=values.get("type_vocab_size"),
    )
