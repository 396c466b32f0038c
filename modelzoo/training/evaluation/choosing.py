"""Rows with choices: which one a model takes, and how good that is, by the rules that benchmarks have for such rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo.data import DataLimits, TokenizedDataset
from modelzoo.data.tasks import Recipe, encode_candidates, find_columns, task_spec
from modelzoo.data.tasks.choices import ChoiceRow, read_choices
from modelzoo.errors import DataError
from modelzoo.runtime import World
from modelzoo.training.evaluation.answers import AnswerMetrics, normalise_answer
from modelzoo.training.evaluation.forward_all import evaluating, forward_all

__all__ = [
    "ChoosingSet",
    "choice_metrics",
    "choice_rows",
    "choosing_set",
    "grouped_share",
    "likeliest",
    "log_likelihoods",
    "metric_missing",
    "written_choice",
]

IGNORED = -100
NONE = -1
"""What was written is no choice."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ChoosingSet:
    """Rows whose choices a language model compares."""

    rows: list[ChoiceRow]
    candidates: TokenizedDataset
    """Each choice after its text, row after row."""
    batch_tokens: int
    """Most tokens of one forward on one process."""
    vocab_size: int | None


def choice_rows(
    rows: Rows, task: str, columns: Mapping[str, str] | None, *, source: str = "data", labelled: bool = True
) -> list[ChoiceRow] | None:
    """Return rows with choices, or None where the rows of a task have none.

    Args:
        rows: At least one.
        task: Of the model.
        columns: Column by role.
        source: What the rows are called in errors.
        labelled: Whether each row has to have a label.
    """
    if task != "multiple_choice" and task_spec(task).candidates is None:
        return None
    found = find_columns(rows, task, columns, source=source, labelled=labelled)
    return read_choices(rows, found, source=source, labelled=labelled) if "choices" in found else None


def choosing_set(
    rows: Rows, recipe: Recipe, limits: DataLimits, *, batch_tokens: int, vocab_size: int | None
) -> ChoosingSet | None:
    """Return rows with choices as a language model compares them, or None where they have none.

    Args:
        rows: At least one.
        recipe: How they are encoded.
        limits: Of the model.
        batch_tokens: Most tokens of one forward.
        vocab_size: Of the model.

    Raises:
        DataError: As `encode_candidates`.
    """
    if task_spec(recipe.task).candidates is None:
        return None
    found = choice_rows(rows, recipe.task, recipe.columns, source=recipe.source, labelled=recipe.labelled)
    if found is None:
        return None
    candidates = TokenizedDataset(encode_candidates(rows, recipe), recipe, limits, len(rows))
    assert len(candidates) == sum(len(row.choices) for row in found)
    return ChoosingSet(found, candidates, batch_tokens, vocab_size)


def likeliest(
    model: nn.Module, samples: ChoosingSet, world: World, *, wants_stop: Callable[[], bool] | None = None
) -> list[tuple[int, list[float]]]:
    """Return for each row the choice that the model finds likeliest, and the log-likelihood of all. Collective.

    A choice's log-likelihood is the sum over its tokens and the end token, not divided by their number: the logarithm of the
    probability that the model writes just this. Of equal ones the first is taken.

    Args:
        model: Plain or sharded; it keeps its mode.
        samples: The rows.
        world: The processes, which share the choices.
        wants_stop: Asked on every rank between forwards.

    Raises:
        EvaluationStopped: Any rank wanted to stop; all raise it.
    """
    predicts_next = task_spec(samples.candidates.task).predicts_next
    found: dict[int, float] = {}
    with evaluating(model):
        for batch in forward_all(
            model,
            samples.candidates,
            world,
            batch_tokens=samples.batch_tokens,
            vocab_size=samples.vocab_size,
            wants_stop=wants_stop,
        ):
            values = log_likelihoods(batch.output.logits, batch.tensors["labels"], predicts_next=predicts_next)
            found |= dict(zip(batch.indices, values.tolist(), strict=True))
    everything: dict[int, float] = {}
    for part in world.gather(found):
        everything |= part
    result, start = [], 0
    for row in samples.rows:
        scores = [everything[start + number] for number in range(len(row.choices))]
        start += len(scores)
        result.append((scores.index(max(scores)), scores))
    return result


def log_likelihoods(logits: Tensor, labels: Tensor, *, predicts_next: bool) -> Tensor:
    """Return the log-likelihood of each row's targets, their sum.

    Args:
        logits: (B, T, V) float.
        labels: (B, T) int64; -100 is no target.
        predicts_next: Whether the logits at a token are of the one after it.

    Returns:
        (B,) float64 on the logits' device.
    """
    if predicts_next:
        logits, labels = logits[:, :-1], labels[:, 1:]
    wanted = labels != IGNORED
    chosen = logits[wanted].float().log_softmax(-1).gather(1, labels[wanted].unsqueeze(1)).squeeze(1)
    sums = torch.zeros(len(labels), dtype=torch.float64, device=logits.device)
    return sums.index_add_(0, wanted.nonzero()[:, 0], chosen.double())


def written_choice(text: str, row: ChoiceRow) -> int:
    """Return the number of the choice that a model wrote, whatever its case, articles and punctuation; -1 for none of them."""
    exact = [number for number, choice in enumerate(row.choices) if choice.strip() == text.strip()]
    near = [number for number, choice in enumerate(row.choices) if normalise_answer(choice) == normalise_answer(text)]
    return next(iter(exact or near), NONE)


def choice_metrics(rows: Sequence[ChoiceRow], chosen: Sequence[int], texts: Sequence[str] | None = None) -> dict[str, float]:
    """Return how good choices are.

    Args:
        rows: With labels.
        chosen: Number of each row's choice, -1 for none.
        texts: What the model wrote for each row; None where it chose.

    Returns:
        accuracy. f1, where all rows have the same choices: of choice 1 of two, else the mean over choices. f1 and exact_match,
        where rows say all their answers (ReCoRD): of the name of what was chosen, or of what was written, the best over the
        answers. exact_match, where rows have groups (MultiRC): the share of groups that are right in every row.
    """
    right = [_is_right(row, number) for row, number in zip(rows, chosen, strict=True)]
    values = {"accuracy": sum(right) / len(right) if right else math.nan}
    if len({row.names for row in rows}) == 1 and len(rows[0].names) > 1:
        values["f1"] = _f1([row.label or 0 for row in rows], chosen, len(rows[0].names))
    if all(row.answers for row in rows):
        answers = AnswerMetrics()
        for number, row in enumerate(rows):
            name = row.names[chosen[number]] if chosen[number] != NONE else ""
            answers.update(texts[number] if texts is not None else name, row.answers)
        values |= answers.values()
    if all(row.group is not None for row in rows):
        values["exact_match"] = grouped_share([str(row.group) for row in rows], right)
    return values


def metric_missing(metric: str, rows: Sequence[ChoiceRow], source: str) -> DataError | None:
    """Return the error if rows with choices do not have a metric, or None."""
    values = {"loss", "perplexity", *choice_metrics(rows, [row.label or 0 for row in rows])}
    if metric in values:
        return None
    return DataError(f"{source}: evaluation.metric={metric}: these rows with choices have {', '.join(sorted(values))}; use one")


def grouped_share(groups: Sequence[str], right: Sequence[bool]) -> float:
    """Return the share of groups all of whose rows are right."""
    whole: dict[str, bool] = {}
    for group, is_right in zip(groups, right, strict=True):
        whole[group] = whole.get(group, True) and is_right
    return sum(whole.values()) / len(whole) if whole else math.nan


def _is_right(row: ChoiceRow, number: int) -> bool:
    return number != NONE and (number == row.label or row.names[number] in row.answers)


def _f1(labels: Sequence[int], chosen: Sequence[int], count: int) -> float:
    """Return the F1 of choice 1 of two, or the mean over choices; a choice that is neither there nor taken counts 0."""
    each = []
    for label in range(count):
        hits = sum(true == found == label for true, found in zip(labels, chosen, strict=True))
        whole = sum(true == label for true in labels) + sum(found == label for found in chosen)
        each.append(2 * hits / whole if whole else 0.0)
    return each[1] if count == 2 else sum(each) / count
