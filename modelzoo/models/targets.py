"""Labels as a loss may use them: of the task's kind, in range, and none where there is no token."""

import torch
from torch import Tensor

from modelzoo.converters import Task
from modelzoo.errors import DataError
from modelzoo.layers import Layout
from modelzoo.models.inputs import check_labels
from modelzoo.models.losses import IGNORED

__all__ = ["choice_targets", "require_label_kind", "span_targets", "targets"]


def require_label_kind(task: Task, labels: Tensor | None, starts: Tensor | None, ends: Tensor | None) -> None:
    """Refuse labels that a task does not take.

    Raises:
        DataError: Names the task and what it takes.
    """
    is_span = task == "question_answering"
    has_none = task in ("base", "encoder")
    if labels is not None and (is_span or has_none):
        wanted = "start_positions and end_positions" if is_span else "no labels"
        raise DataError(f"labels were given to a model for {task}, which takes {wanted}")
    if (starts is not None or ends is not None) and not is_span:
        takes = "no labels" if has_none else "labels"
        raise DataError(f"start_positions or end_positions were given to a model for {task}, which takes {takes}")
    if (starts is None) != (ends is None):
        raise DataError("start_positions and end_positions belong together; one of them is missing")


def targets(labels: Tensor, layout: Layout, shape: tuple[int, ...], num_labels: int) -> Tensor:
    """Return labels with -100 at padding, and at rows of padding alone.

    Args:
        labels: (B,) or (B, T) int.
        layout: Where the real tokens are.
        shape: (B,) or (B, T), what the task has a label for.
        num_labels: Classes.

    Returns:
        The shape of `labels`, int64.

    Raises:
        DataError: The shape is another, or a label is not in range.
    """
    check_labels("labels", labels, shape, num_labels)
    real = _real(layout)
    if real is None:
        return labels.long()
    return labels.long().masked_fill(~(real if labels.dim() == 2 else real.any(1)), IGNORED)


def choice_targets(labels: Tensor, absent: Tensor | None, rows: int, choices: int) -> Tensor:
    """Return the right choices of rows, with -100 at rows without any choice.

    Args:
        labels: (B,) int, number of the right choice, or -100.
        absent: (B, C) bool, True where there is no choice; None when there are all.
        rows: B.
        choices: C.

    Raises:
        DataError: The shape is another, or a label is no choice of its row.
    """
    check_labels("labels", labels, (rows,), choices)
    if absent is None:
        return labels.long()
    wanted = labels.long().masked_fill(absent.all(1), IGNORED)
    wrong = (wanted != IGNORED) & absent.gather(1, wanted.clamp(min=0).unsqueeze(1)).squeeze(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"labels: row {row}: choice {int(wanted[row])} has no token; give the number of a choice that is there")
    return wanted


def span_targets(name: str, positions: Tensor, layout: Layout) -> Tensor:
    """Return the columns of answers, with -100 at rows of padding alone.

    Args:
        name: Argument, as "start_positions".
        positions: (B,) int columns, or -100.
        layout: Where the real tokens are.

    Raises:
        DataError: A column is outside the batch, or holds padding.
    """
    rows, width = layout.batch_shape
    check_labels(name, positions, (rows,), width)
    real = _real(layout)
    if real is None:
        return positions.long()
    columns = positions.long().masked_fill(~real.any(1), IGNORED)
    in_padding = (columns != IGNORED) & ~real.gather(1, columns.clamp(min=0).unsqueeze(1)).squeeze(1)
    if in_padding.any():
        row = int(in_padding.nonzero()[0])
        raise DataError(
            f"{name}: row {row}: column {int(columns[row])} is padding, which holds no answer; "
            f"give the column of a token, or {IGNORED} for none"
        )
    return columns


def _real(layout: Layout) -> Tensor | None:
    """Return (B, T) bool, True at real tokens, or None when all are."""
    if layout.indices is None:
        return None
    return layout.unpack(torch.ones_like(layout.indices, dtype=torch.bool))
