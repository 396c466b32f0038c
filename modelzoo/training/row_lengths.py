"""How long the training rows of a recipe are, for a plan: read where model and data are here, else said to be unknown."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from modelzoo.config import RunSettings
from modelzoo.errors import ModelZooError
from modelzoo.quantities import counted
from modelzoo.training.preparation import prepare, source_name

__all__ = ["RowLengths", "row_lengths"]

MOST_ROWS = 10_000
"""Rows that are read: their lengths stand for those of the rest."""


class RowLengths(NamedTuple):
    """Of the training rows."""

    tokens: Sequence[int] | None
    """Of each row; None where they are not known."""
    text: str
    """Where they are from, or why they are not known, in a line."""


def row_lengths(settings: RunSettings) -> RowLengths:
    """Return the lengths of the first training rows as a run would read them; nothing is fetched and no weight is read.

    Args:
        settings: Of the run.
    """
    data = settings.data
    place = data.train if data.train is not None else data.name
    missing = next((name for name in (settings.model.name, place) if name is not None and not Path(name).exists()), None)
    if missing is not None or place is None:
        return RowLengths(None, f"{missing} is not on this machine")
    most = MOST_ROWS if data.max_rows is None else min(MOST_ROWS, data.max_rows)
    read = data.model_copy(update={"validation": None, "test": None, "max_rows": most})
    try:
        train = prepare(settings.model_copy(update={"data": read})).train
    except ModelZooError as error:
        return RowLengths(None, str(error).splitlines()[0])
    lengths = train.lengths
    which = f"the first {most:,} rows" if train.report.rows == MOST_ROWS else counted(train.report.rows, "row")
    mean = sum(lengths) / len(lengths)
    spread = f"{min(lengths)} to {max(lengths)} tokens, {mean:.0f} on average"
    spread = spread if min(lengths) < max(lengths) else counted(max(lengths), "token")
    return RowLengths(lengths, f"{source_name(settings, 'train')}: {which} of {spread}")
