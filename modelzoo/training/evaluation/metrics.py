"""Exact metrics from counts: each batch adds to them, ranks add them up, and the result is that of all samples at once.

No logits are kept. A metric object holds a list of numbers, `counts`; two objects over two halves of the data, their counts added,
give the values of one object over all of it.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from modelzoo.training.evaluation.entities import count_entities, is_entity_scheme

__all__ = ["ClassificationMetrics", "LossMetrics", "Metrics", "TokenMetrics", "is_better", "lower_is_better", "majority_share"]

IGNORED = -100


class Metrics(Protocol):
    """What the evaluation needs of a metric."""

    counts: list[float]
    """Numbers that add up over batches and ranks."""

    def values(self) -> dict[str, float]:
        """Return the metrics of what was counted."""
        ...


class LossMetrics:
    """Mean loss over all targets, and its exponential."""

    def __init__(self) -> None:
        self.counts = [0.0, 0.0]

    def update(self, mean_loss: float, num_targets: int) -> None:
        """Add a batch's mean loss over its `num_targets` targets."""
        if num_targets:
            self.counts[0] += mean_loss * num_targets
            self.counts[1] += num_targets

    def values(self) -> dict[str, float]:
        """Return `loss`, the mean over targets, and `perplexity`; NaN without any target."""
        total, count = self.counts
        loss = total / count if count else math.nan
        # exp(709.8) is the largest float
        return {"loss": loss, "perplexity": math.exp(loss) if not loss > 709 else math.inf}


class ClassificationMetrics:
    """Accuracy, F1 and Matthews correlation from the table of (label, predicted label) counts.

    `f1` is that of label 1 where there are two labels, and the mean over all labels otherwise (a label that is neither there nor
    predicted counts 0, as in scikit-learn). `mcc` is the generalised coefficient of Gorodkin (2004); 0 where it is not defined.

    Args:
        num_labels: How many labels there are.
    """

    def __init__(self, num_labels: int) -> None:
        self._num_labels = num_labels
        self.counts = [0.0] * (num_labels * num_labels)

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add samples.

        Args:
            predictions: (...) integer, predicted label ids.
            labels: (...) integer, true ones; -100 is left out.
        """
        known = labels != IGNORED
        cells = labels[known] * self._num_labels + predictions[known]
        for cell, count in enumerate(torch.bincount(cells.reshape(-1), minlength=len(self.counts)).tolist()):
            self.counts[cell] += count

    def values(self) -> dict[str, float]:
        """Return `accuracy`, `f1` and `mcc`; NaN without any sample."""
        table = self._table()
        count = sum(self.counts)
        if not count:
            return {"accuracy": math.nan, "f1": math.nan, "mcc": math.nan}
        right = [table[label][label] for label in range(self._num_labels)]
        true = [sum(row) for row in table]
        predicted = [sum(column) for column in zip(*table, strict=True)]
        f1 = [_ratio(2 * r, t + p) for r, t, p in zip(right, true, predicted, strict=True)]
        covariance = sum(right) * count - sum(t * p for t, p in zip(true, predicted, strict=True))
        spread = (count**2 - sum(p * p for p in predicted)) * (count**2 - sum(t * t for t in true))
        return {
            "accuracy": sum(right) / count,
            "f1": f1[1] if self._num_labels == 2 else sum(f1) / self._num_labels,
            "mcc": _ratio(covariance, math.sqrt(spread)),
        }

    def majority(self) -> float:
        """Return the accuracy of always answering with the commonest label; NaN without any sample."""
        return majority_share([sum(row) for row in self._table()])

    def _table(self) -> list[list[float]]:
        width = self._num_labels
        return [self.counts[row * width : (row + 1) * width] for row in range(width)]


class TokenMetrics:
    """Token accuracy, and F1 over whole entities where the labels are of a BIO form.

    `f1` is the micro average over entities with the same kind, begin and end (Tjong Kim Sang and De Meulder 2003; the default mode
    of seqeval). Where the labels are of no such form it is the macro average over tokens.

    Args:
        label_names: Names of the labels in the order of their ids.
    """

    def __init__(self, label_names: Sequence[str]) -> None:
        self._names = list(label_names)
        self._tokens = ClassificationMetrics(len(self._names))
        self._has_entities = is_entity_scheme(self._names)
        self._entities = [0.0, 0.0, 0.0]

    @property
    def counts(self) -> list[float]:
        """The token table, then entities that are right, predicted and true."""
        return [*self._tokens.counts, *self._entities]

    @counts.setter
    def counts(self, counts: list[float]) -> None:
        self._tokens.counts, self._entities = counts[:-3], counts[-3:]

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add sequences.

        Args:
            predictions: (B, T) integer, predicted label ids.
            labels: (B, T) integer, true ones; -100 is left out.
        """
        self._tokens.update(predictions, labels)
        if not self._has_entities:
            return
        for predicted, true in zip(predictions, labels, strict=True):
            known = true != IGNORED
            found = count_entities(
                [self._names[label] for label in predicted[known].tolist()], [self._names[label] for label in true[known].tolist()]
            )
            self._entities = [total + number for total, number in zip(self._entities, found, strict=True)]

    def values(self) -> dict[str, float]:
        """Return `accuracy` and `f1`; with entities also `precision` and `recall`."""
        tokens = self._tokens.values()
        if not self._has_entities:
            return {"accuracy": tokens["accuracy"], "f1": tokens["f1"]}
        right, predicted, true = self._entities
        return {
            "accuracy": tokens["accuracy"],
            "f1": _ratio(2 * right, predicted + true),
            "precision": _ratio(right, predicted),
            "recall": _ratio(right, true),
        }

    def majority(self) -> float:
        """Return the token accuracy of always answering with the commonest label."""
        return self._tokens.majority()


def majority_share(counts: Sequence[float]) -> float:
    """Return the share of the largest of some label counts: what an answer that never changes would reach."""
    total = sum(counts)
    return max(counts) / total if total else math.nan


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is the better one."""
    return metric in {"loss", "perplexity"}


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether `value` beats `best`; an equal one does not, so the earlier stays, and NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best if lower_is_better(metric) else value > best


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
