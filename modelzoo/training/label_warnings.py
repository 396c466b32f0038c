"""What looks wrong with the labels of a run without being certain: typed wrong once, never shown by training, or alone in it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelzoo.data import Samples
from modelzoo.data.labels import LabelTable, lookalikes

__all__ = ["label_warnings"]

Rows = Sequence[Mapping[str, Any]]

_SHOWN = 5


def label_warnings(datasets: Mapping[str, Samples], rows: Mapping[str, Rows], column: str | None) -> Iterator[str]:
    """Give what one should look at before training; each names the split, the label, its rows, and what to do.

    Args:
        datasets: By split, train among them.
        rows: That they were made of, by split.
        column: Of the labels; None where labels have no names.
    """
    if column is None:
        return
    counts = {split: dataset.report.label_counts for split, dataset in datasets.items()}
    shown = [name for name, count in counts["train"].items() if count]
    if len(shown) == 1:
        yield f"train: every row has the label {shown[0]!r}, so that nothing else can be learned; look at data.columns.label"
    for split, known in counts.items():
        for name, other in lookalikes(known):
            yield (
                f"{split}: label {name!r} ({_where(rows[split], column, name, datasets[split])}) is close to {other!r} "
                f"({known[other]:,} times); if it is that label typed wrong, correct the rows, as it is a class of its own now"
            )
    for split, known in counts.items():
        for name in [name for name, count in known.items() if split != "train" and count and not counts["train"].get(name)]:
            yield (
                f"{split}: label {name!r} ({_where(rows[split], column, name, datasets[split])}) occurs in no row of train, so "
                "that it cannot be learned; add such rows to data.train, or leave these out"
            )


def _where(rows: Rows, column: str, name: str, dataset: Samples) -> str:
    """Return the rows that have a label, counted from 1, the first few of them."""
    table = LabelTable(dataset.label_names)
    wanted = table.id(name)
    found = [
        number for number, row in enumerate(rows, start=1) if any(table.id(each) == wanted for each in _values(row.get(column)))
    ]
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return f"{'row' if len(found) == 1 else 'rows'} {', '.join(map(str, found[:_SHOWN]))}{more}"


def _values(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)
