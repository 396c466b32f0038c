"""Evaluation: exact metrics over all samples of a data set, each counted once, on any number of ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from modelzoo.data import TokenizedDataset
from modelzoo.runtime import World
from modelzoo.training.forward_all import evaluating, forward_all
from modelzoo.training.task_metrics import TaskMetrics

__all__ = ["EvaluationSet", "measure"]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Samples to evaluate on, with what their metrics need."""

    name: str
    """As in messages: validation, test."""
    dataset: TokenizedDataset
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]
    batch_tokens: int
    """Most tokens of one forward on one process."""
    vocab_size: int | None = None
    """Given where the logits are over the vocabulary."""

    @property
    def num_tokens(self) -> int:
        """Real tokens of all samples."""
        return sum(self.dataset.lengths)


def measure(model: nn.Module, samples: EvaluationSet, world: World) -> dict[str, float]:
    """Return the metrics of a plain or sharded model, the same on every rank. Collective.

    The model is left in the mode that it had. Nothing is drawn from any random generator.

    Args:
        model: Of the task of the samples.
        samples: What to evaluate on.
        world: The processes.
    """
    metrics = TaskMetrics(samples.dataset, samples.rows, samples.columns)
    with evaluating(model):
        for batch in forward_all(model, samples.dataset, world, batch_tokens=samples.batch_tokens, vocab_size=samples.vocab_size):
            metrics.update(batch)
    return metrics.values(world)
