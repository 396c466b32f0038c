"""What a model can take, and what its task says about its scores."""

from modelzoo.data import DataLimits
from modelzoo.data.tasks import TASKS
from modelzoo.errors import ConfigError
from modelzoo.models.model import Model

__all__ = ["has_labels", "limits_of", "require_plain_inputs", "scored_size"]

_BUILT_INPUTS = {"cpmbee": "trees of texts", "glm-10b": "texts with blanks"}
"""Families that read something else than ids in a row."""


def has_labels(model: Model) -> bool:
    """Whether the labels of the model's task have names."""
    return model.task in TASKS and TASKS[model.task].label_role is not None


def scored_size(model: Model) -> int | None:
    """Return how many tokens the model scores for each one, where that is its whole vocabulary."""
    return model.config.vocab_size if model.task in TASKS and TASKS[model.task].scores_vocabulary else None


def require_plain_inputs(model: Model) -> None:
    """Refuse a family whose language model is trained on inputs that are built in its own way.

    Raises:
        ConfigError: It is one.
    """
    if model.family in _BUILT_INPUTS and model.task == "causal_lm":
        raise ConfigError(
            f"model.task=causal_lm: a {type(model).__name__} is trained on {_BUILT_INPUTS[model.family]}, for which there is no "
            "recipe; build its inputs as docs/built_prompts.md shows, and train it in your own loop"
        )


def limits_of(model: Model) -> DataLimits:
    """Return what a model can take."""
    return DataLimits(
        vocab_size=model.config.vocab_size,
        max_length=model.max_text_length,
        num_labels=model.config.num_labels if has_labels(model) else None,
        type_vocab_size=model.config.values().get("type_vocab_size"),
    )
