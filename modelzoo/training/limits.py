"""What a model can take, and what its task says about its scores."""

from modelzoo.data import DataLimits
from modelzoo.data.tasks import TASKS
from modelzoo.models.model import Model

__all__ = ["has_labels", "limits_of", "scored_size"]


def has_labels(model: Model) -> bool:
    """Whether the labels of the model's task have names."""
    return model.task in TASKS and TASKS[model.task].label_role is not None


def scored_size(model: Model) -> int | None:
    """Return how many tokens the model scores for each one, where that is its whole vocabulary."""
    return model.config.vocab_size if model.task in TASKS and TASKS[model.task].scores_vocabulary else None


def limits_of(model: Model) -> DataLimits:
    """Return what a model can take."""
    return DataLimits(
        vocab_size=model.config.vocab_size,
        max_length=model.max_length,
        num_labels=model.config.num_labels if has_labels(model) else None,
        type_vocab_size=model.config.values().get("type_vocab_size"),
    )
