"""What every data set is: samples of a task, with their lengths, what became of the rows, and a fingerprint."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from modelzoo.data.limits import DataReport
from modelzoo.data.tasks.draws import Item
from modelzoo.errors import DataError

__all__ = ["FORMS", "Samples"]

FORMS = {
    "text": "texts, every token learned",
    "masked": "texts, some tokens hidden",
    "holes": "texts with holes to fill (span corruption)",
    "completion": "prompts with completions",
    "chat": "chats, the assistant's answers learned",
    "pair": "sources with targets",
    "choice": "texts with choices, the right one learned",
}
"""What a form of rows is called, and what is learned from it."""


class Samples(ABC):
    """Samples of a task, wherever they are kept.

    Args:
        task: Of the model.
        source: What the rows are called in errors.
        rows: The row of each sample, counted from 0.
        lengths: Tokens of each sample, those of a decoder included.
        target_lengths: Tokens of each sample that a decoder beside an encoder works on; empty for other tasks.
        label_names: Names of the labels by id.
        form: Which form a language model's rows have, one of FORMS; empty for other tasks.
        pad_id: Id of the padding.
        is_labelled: False where there are no targets (prediction).
    """

    has_texts: ClassVar[bool] = True
    """Whether the rows have columns of texts, which have roles."""
    report: DataReport
    """What became of the rows."""
    fingerprint: str
    """The sha256 of what training sees."""

    def __init__(
        self,
        *,
        task: str,
        source: str,
        rows: list[int],
        lengths: list[int],
        target_lengths: list[int] | None = None,
        label_names: Sequence[str] = (),
        form: str = "",
        pad_id: int | None = None,
        is_labelled: bool = True,
    ) -> None:
        self.task, self.source, self.form = task, source, form
        self.rows, self.lengths, self.target_lengths = rows, lengths, target_lengths or []
        self.label_names, self.pad_id, self.is_labelled = tuple(label_names), pad_id or 0, is_labelled

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def item(self, index: int, *, epoch: int = 0) -> Item:
        """Return one sample as the model's inputs and targets.

        Args:
            index: Number of the sample, 0 <= index < len(self).
            epoch: Number of the pass over the data; what is drawn anew (masks, holes) differs from pass to pass.
        """

    @abstractmethod
    def num_targets(self, index: int, *, epoch: int = 0) -> int:
        """Return how many supervised targets a sample has; a question's start and end count as one."""

    def describe(self) -> str:
        """Return the form of the rows, for a language model, and what became of them, in one line."""
        return f"{FORMS[self.form]} · {self.report.describe()}" if self.form else self.report.describe()

    def context_offsets(self, index: int) -> list[tuple[int, int] | None]:
        """Return the characters [start, end) in the context of each token of a window, None for tokens outside it.

        Raises:
            DataError: If the task is not question_answering.
        """
        raise DataError(f"context offsets belong to question_answering, found task {self.task}")
