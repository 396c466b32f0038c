"""Label values to ids: booleans, integers and strings, with names that are the same however the file spells them."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modelzoo.data.columns import show
from modelzoo.errors import DataError, closest

__all__ = ["LabelTable", "collect_names", "lookalikes"]

# More different labels than this, and one for every second row: then the column holds no labels.
_MANY_LABELS = 50
_LIKE = 0.75


class LabelTable:
    """Maps a label's value to its id by its name.

    A value's name is its text: "false" and "true" for booleans (in any case of letters), "3" for 3 and 3.0. An integer that is
    no name is an id itself, which is how `datasets` stores class labels.

    Args:
        names: Name by id.

    Raises:
        DataError: If there is no name or one twice.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ids = {name: number for number, name in enumerate(self.names)}
        self._folded = {name.lower(): number for number, name in enumerate(self.names)}
        if not names or len(self._ids) != len(names):
            double = sorted({name for name in names if list(names).count(name) > 1})
            raise DataError(f"label_names: expected at least one name, each once, found {', '.join(double) or 'none'} twice")

    def id(self, value: object) -> int:
        """Return the id of a label's value.

        Raises:
            ValueError: If the value is no label of this table; the message names the value and the labels.
        """
        value = value.item() if isinstance(value, np.generic) else value
        name = label_name(value)
        if name in self._ids:
            return self._ids[name]
        if name.lower() in ("false", "true") and name.lower() in self._folded:
            return self._folded[name.lower()]
        if isinstance(value, int | float) and 0 <= value < len(self.names):
            return int(value)
        known = ", ".join(self.names[:20]) + (f", ... ({len(self.names)} in all)" if len(self.names) > 20 else "")
        similar = closest(name, self.names)
        hint = f"; did you mean {similar[0]}?" if similar and isinstance(value, str) else ""
        raise ValueError(f"label {show(value)} is not one of {len(self.names)} known labels ({known}){hint}")


def label_name(value: object) -> str:
    """Return the name of a label's value.

    Raises:
        ValueError: If the value is missing, negative, fractional, or no label at all.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"label {value} is negative; -1 marks rows without a label in GLUE's test sets")
        return str(value)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise ValueError("the label is missing")
    if isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value):
        return value
    raise ValueError(f"expected a label (text, integer or true/false), found {show(value)} ({type(value).__name__})")


def lookalikes(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return labels that could be a common one typed wrong, each with that one, the rarest first.

    A label is held to be such where it has the other's letters in another case, or where it is close to it (a similarity of 0.75
    and more, as `difflib` measures it, or its letters in another order) and rare beside it: at most a fifth of its rows, and at
    most 3 rows or a two-hundredth of them.

    Args:
        counts: Rows, or words, by label.
    """
    found = []
    names = [name for name, count in counts.items() if count and not name.isdecimal()]
    for name in sorted(names, key=lambda each: counts[each]):
        common = [other for other in names if (counts[other], other) > (counts[name], name) and _is_like(name, other, counts)]
        if common:
            found.append((name, max(common, key=lambda other: counts[other])))
    return found


def _is_like(name: str, other: str, counts: Mapping[str, int]) -> bool:
    if name.strip().casefold() == other.strip().casefold():
        return True
    if counts[name] * 5 > counts[other] or counts[name] > max(3, counts[other] // 200):
        return False
    # of entities the kind is compared, not B- with I-
    if name[:2] in ("B-", "I-") and other[:2] in ("B-", "I-"):
        return name[:2] == other[:2] and _similarity(name[2:], other[2:]) >= _LIKE
    return _similarity(name, other) >= _LIKE


def _similarity(name: str, other: str) -> float:
    first, second = name.casefold(), other.casefold()
    return 1.0 if sorted(first) == sorted(second) else difflib.SequenceMatcher(None, first, second).ratio()


def collect_names(values: Iterable[object], num_rows: int) -> tuple[str, ...]:
    """Return the names of all labels: integers by value, false before true, texts by their code points.

    Args:
        values: Labels that `label_name` accepts.
        num_rows: Rows that they come from.

    Raises:
        DataError: If labels are of different kinds, or nearly every row has its own.
    """
    kinds: dict[str, object] = {}
    names: set[str] = set()
    for value in values:
        value = value.item() if isinstance(value, np.generic) else value
        kind = "true/false" if isinstance(value, bool) else "integer" if isinstance(value, int | float) else "text"
        kinds.setdefault(kind, value)
        names.add(label_name(value))
    if len(kinds) > 1:
        found = ", ".join(f"{kind} ({show(value)})" for kind, value in kinds.items())
        raise DataError(f"expected labels of one kind, found {found}; write them all in one way")
    if len(names) > max(_MANY_LABELS, num_rows // 2):
        example = show(min(names))
        raise DataError(
            f"expected labels that repeat, found {len(names)} different ones in {num_rows} rows (such as {example}); "
            f"set data.columns.label to the column of the labels"
        )
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))
