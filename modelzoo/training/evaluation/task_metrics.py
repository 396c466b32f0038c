"""Which metrics a task has, and how they follow from the model's output."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data import Samples
from modelzoo.data.tasks import find_columns, task_spec
from modelzoo.data.tasks.choices import read_groups
from modelzoo.runtime import World
from modelzoo.training.evaluation.answers import AnswerMetrics
from modelzoo.training.evaluation.choosing import choice_metrics, choice_rows, grouped_share
from modelzoo.training.evaluation.forward_all import ForwardBatch
from modelzoo.training.evaluation.metrics import ClassificationMetrics, LossMetrics, TokenMetrics
from modelzoo.training.evaluation.spans import Span, best_spans, better_span

__all__ = ["TaskMetrics", "true_answers"]

Rows = Sequence[Mapping[str, Any]]


class TaskMetrics:
    """The metrics of a task over a data set, added up over batches and ranks.

    Args:
        dataset: With targets.
        rows: The rows that it was built from; question answering compares texts.
        columns: Column by role, as for the data set.

    """

    def __init__(self, dataset: Samples, rows: Rows, columns: Mapping[str, str] | None = None) -> None:
        self._dataset = dataset
        self._spec = task_spec(dataset.task)
        self._loss = LossMetrics()
        self._labels: ClassificationMetrics | TokenMetrics | None = None
        self._right_tokens = [0.0, 0.0]
        self._spans: dict[int, Span] = {}
        self._rows, self._columns = rows, columns
        self._chosen: dict[int, int] = {}
        self._groups: list[str] | None = None
        if dataset.task == "classification":
            has_texts = bool(rows) and dataset.has_texts
            self._groups = read_groups(rows, find_columns(rows, dataset.task, columns)) if has_texts else None
            self._labels = ClassificationMetrics(len(dataset.label_names))
        elif dataset.task == "token_classification":
            self._labels = TokenMetrics(dataset.label_names)

    def update(self, batch: ForwardBatch) -> None:
        """Add the samples of a forward."""
        output = batch.output
        self._loss.update(float(output.loss), batch.num_targets)
        if self._groups is not None or self._dataset.task == "multiple_choice":
            best = output.logits.argmax(-1).tolist()
            self._chosen |= {self._dataset.rows[index]: number for index, number in zip(batch.indices, best, strict=True)}
        if self._labels is not None:
            self._labels.update(output.logits.argmax(-1).cpu(), batch.tensors["labels"].cpu())
        elif self._dataset.task == "multiple_choice":
            pass
        elif self._spec.scores_vocabulary:
            labels, best = batch.tensors["labels"], output.logits.argmax(-1)
            right = ((best[:, :-1] == labels[:, 1:]) if self._spec.predicts_next else (best == labels)).sum()
            self._right_tokens = [self._right_tokens[0] + int(right), self._right_tokens[1] + batch.num_targets]
        else:
            offsets = [self._dataset.context_offsets(index) for index in batch.indices]
            for index, span in zip(batch.indices, best_spans(output.start_logits, output.end_logits, offsets), strict=True):
                _add_span(self._spans, self._dataset.rows[index], span)

    def values(self, world: World) -> dict[str, float]:
        """Return the metrics over the samples of all ranks. Collective."""
        self._loss.counts = world.sum_data(self._loss.counts)
        loss = self._loss.values()
        if self._labels is not None:
            self._labels.counts = world.sum_data(self._labels.counts)
            return {**self._labels.values(), **self._grouped(world), "loss": loss["loss"]}
        if self._dataset.task == "multiple_choice":
            rows = choice_rows(self._rows, "multiple_choice", self._columns) or []
            chosen = self._everywhere(world)
            return {**choice_metrics(rows, [chosen[row] for row in range(len(rows))]), "loss": loss["loss"]}
        if self._spec.scores_vocabulary:
            right, count = world.sum_data(self._right_tokens)
            return {"accuracy": right / count if count else float("nan"), **loss}
        spans: dict[int, Span] = {}
        for some in world.gather(self._spans):
            for row, span in some.items():
                _add_span(spans, row, span)
        return {**self._answer_values(spans), "loss": loss["loss"]}

    def _everywhere(self, world: World) -> dict[int, int]:
        """Return what was chosen for each row, on any rank. Collective."""
        return {row: number for part in world.gather(self._chosen) for row, number in part.items()}

    def _grouped(self, world: World) -> dict[str, float]:
        """Return the share of groups that are right in every row, where a classifier's rows have groups. Collective."""
        if self._groups is None:
            return {}
        chosen = self._everywhere(world)
        items = range(len(self._dataset))
        right = [self._dataset.item(item)["labels"] == chosen[self._dataset.rows[item]] for item in items]
        return {"exact_match": grouped_share([self._groups[self._dataset.rows[item]] for item in items], right)}

    def majority(self) -> float | None:
        """Return the accuracy of always answering with the commonest label, after `values`; None for other tasks."""
        return None if self._labels is None else self._labels.majority()

    def _answer_values(self, spans: Mapping[int, Span]) -> dict[str, float]:
        columns = find_columns(self._rows, "question_answering", self._columns)
        answers = [true_answers(row.get(columns["answers"])) for row in self._rows]
        may_be_empty = any(not some for some in answers)
        metrics = AnswerMetrics()
        for row, span in sorted(spans.items()):
            context = str(self._rows[row][columns["context"]])
            metrics.update(span.text(context, may_be_empty=may_be_empty), answers[row])
        return metrics.values()


def _add_span(spans: dict[int, Span], row: int, span: Span) -> None:
    spans[row] = better_span(spans[row], span) if row in spans else span


def true_answers(value: Any) -> list[str]:
    """Return the answer texts of a row in any of the forms that the data part reads; none for an unanswerable question."""
    if isinstance(value, Mapping):
        texts = value.get("text", [])
        return [texts] if isinstance(texts, str) else [str(text) for text in texts]
    return [str(answer["text"]) for answer in value or []]
