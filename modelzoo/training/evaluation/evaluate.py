"""Evaluation: exact metrics over all samples of a data set, each counted once, on any number of ranks."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from modelzoo.data import Samples, TokenizedDataset
from modelzoo.models.model import Model, Task
from modelzoo.runtime import World, connect, failing_together
from modelzoo.training.evaluation.choosing import ChoosingSet, choice_metrics, choosing_set, likeliest
from modelzoo.training.evaluation.forward_all import evaluating, forward_all
from modelzoo.training.evaluation.task_metrics import TaskMetrics
from modelzoo.training.evaluation.writing import WritingSet, writing_set, written_metrics
from modelzoo.training.image_runs import image_dataset
from modelzoo.training.limits import limits_of, scored_size
from modelzoo.training.opening import given_rows, open_model

__all__ = ["EvaluationSet", "evaluate", "measure"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Samples to evaluate on, with what their metrics need."""

    name: str
    """As in messages: validation, test."""
    dataset: Samples
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]
    batch_tokens: int
    """Most tokens of one forward on one process."""
    vocab_size: int | None = None
    """Given where the logits are over the vocabulary."""
    writing: WritingSet | None = None
    """The rows as prompts, where the model is to write and its texts are compared."""
    choosing: ChoosingSet | None = None
    """The choices of the rows, where a language model compares them."""

    @property
    def num_tokens(self) -> int:
        """Real tokens of all samples."""
        return sum(self.dataset.lengths)


def measure(
    model: nn.Module, samples: EvaluationSet, world: World, *, wants_stop: Callable[[], bool] | None = None
) -> dict[str, float]:
    """Return the metrics of a plain or sharded model, the same on every rank. Collective.

    The model is left in the mode that it had. Nothing is drawn from any random generator.

    Args:
        model: Of the task of the samples.
        samples: What to evaluate on.
        world: The processes.
        wants_stop: Asked on every rank between forwards; None never stops.

    Raises:
        EvaluationStopped: Any rank wanted to stop; all raise it.
    """
    metrics = TaskMetrics(samples.dataset, samples.rows, samples.columns)
    with evaluating(model):
        for batch in forward_all(
            model,
            samples.dataset,
            world,
            batch_tokens=samples.batch_tokens,
            vocab_size=samples.vocab_size,
            wants_stop=wants_stop,
        ):
            metrics.update(batch)
    values = metrics.values(world)
    if samples.writing is not None:
        with evaluating(model):
            values |= written_metrics(cast(Model, model), samples.writing, world, wants_stop=wants_stop)
    if samples.choosing is not None:
        chosen = likeliest(model, samples.choosing, world, wants_stop=wants_stop)
        values |= choice_metrics(samples.choosing.rows, [number for number, _ in chosen])
    return values


def evaluate(
    model_or_run: Model | str | os.PathLike[str],
    rows: Rows | str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    task: Task | None = None,
    columns: Mapping[str, str] | None = None,
    max_length: int | None = None,
    batch_tokens: int = 8192,
    max_rows: int | None = None,
    max_new_tokens: int | None = None,
    on_rows: Callable[[str, Samples], None] | None = None,
) -> dict[str, float]:
    """Return the metrics of a model on rows of your own. Under torchrun the processes share the rows.

    Args:
        model_or_run: A model, the folder of a finished run, a Hugging Face folder, or a hub id.
        rows: Rows, a file, or the name of a data set; None for the validation rows of a run.
        split: Which part of a data set or folder.
        task: Which head; None for the one that the checkpoint was saved with.
        columns: Column by role; None for those of the run, or found by name.
        max_length: Longest sequence in tokens; None for that of the run, or 512.
        batch_tokens: Most tokens of one forward on one process.
        max_rows: Only the first rows; None for all.
        max_new_tokens: Most tokens that a language model writes for each row, to be compared with its target; None for those of
            the run, or for nothing to be written.
        on_rows: Told on the first process, before the model runs, what the rows are called and what became of them.

    Returns:
        The metrics of the task, its loss, and, where there are labels, `majority`: the accuracy of always answering the commonest.
    """
    opened = open_model(model_or_run, task=task)
    some, source = given_rows(opened, rows, split, max_rows)
    model = opened.model
    with connect() as world, failing_together(world, "the evaluation"):
        if opened.reads_images:
            images = image_dataset(some, model, opened.folder, source=source)
            if on_rows is not None and world.is_main:
                on_rows(_named(source, rows), images)
            values = measure(model.to(world.device), EvaluationSet("rows", images, some, {}, batch_tokens), world)
            return {**values, "majority": images.report.majority_share or 0.0}
        opened.require_texts(some, columns, source)
        recipe = opened.recipe(columns=columns, max_length=max_length, source=source)
        dataset = TokenizedDataset.from_rows(some, recipe, limits_of(model))
        wanted = opened.max_new_tokens(max_new_tokens)
        writing = choosing = None
        if wanted is not None:
            writing = writing_set(some, recipe, model, max_new_tokens=wanted, batch_tokens=batch_tokens)
        elif dataset.form == "choice":
            choosing = choosing_set(some, recipe, limits_of(model), batch_tokens=batch_tokens, vocab_size=scored_size(model))
        if on_rows is not None and world.is_main:
            on_rows(_named(source, rows), dataset)
        samples = EvaluationSet("rows", dataset, some, recipe.columns or {}, batch_tokens, scored_size(model), writing, choosing)
        values = measure(model.to(world.device), samples, world)
    majority = dataset.report.majority_share
    return values if majority is None else {**values, "majority": majority}


def _named(source: str, rows: object) -> str:
    """Return what the rows of an evaluation are called: whose they are where nobody named them."""
    return f"{source}, the validation rows of the run" if rows is None else source
