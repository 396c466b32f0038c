"""A family's table of config fields: Hugging Face's `config.json` to our config's arguments and back.

What a field may hold is part of the table. A value that we do not build is refused by field, value and what is known, because a
config that is read wrongly gives a model that runs and is wrong. Fields that the table does not name are kept and never used.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.errors import ConfigError, closest, listing

__all__ = ["ConfigTable", "Derived", "Field", "Require", "boolean", "choice", "number", "probability", "size", "token_id"]

Check = Callable[[object], str | None]
"""Returns None when a value is fine, else what is expected."""

_MISSING = object()


def size(maximum: int) -> Check:
    """Return a check for a whole number from 1 to `maximum`."""

    def check(value: object) -> str | None:
        fine = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= maximum
        return None if fine else f"a whole number from 1 to {maximum}"

    return check


def token_id(value: object) -> str | None:
    """Check for a token id, or null."""
    fine = value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31)
    return None if fine else "a token id (a whole number from 0) or null"


def number(minimum: float, maximum: float) -> Check:
    """Return a check for a finite number above `minimum`, `maximum` at most."""

    def check(value: object) -> str | None:
        fine = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and minimum < value <= maximum
        )
        return None if fine else f"a number above {minimum:g}, {maximum:g} at most"

    return check


def probability(*, optional: bool = False) -> Check:
    """Return a check for a dropout rate, 0 to below 1; with `optional` also null."""

    def check(value: object) -> str | None:
        if optional and value is None:
            return None
        fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
        return None if fine else "a number from 0 to below 1" + (" or null" if optional else "")

    return check


def boolean(value: object) -> str | None:
    """Check for true or false."""
    return None if isinstance(value, bool) else "true or false"


def choice(names: Sequence[str]) -> Check:
    """Return a check for one of these strings."""

    def check(value: object) -> str | None:
        if isinstance(value, str) and value in names:
            return None
        near = closest(value, names) if isinstance(value, str) else []
        return f"one of {', '.join(names)}" + (f" (did you mean {near[0]}?)" if near else "")

    return check


@dataclass(frozen=True)
class Field:
    """One argument of our config and the field that holds it.

    Attributes:
        ours: The argument's name.
        theirs: The field's name in config.json.
        default: What an absent field means: transformers' own default for the family.
        check: What values are allowed.
        default_from: What null (and an absent field whose default is None) means, from the other fields; None: null itself.
    """

    ours: str
    theirs: str
    default: Any
    check: Check
    default_from: Callable[[Mapping[str, Any]], Any] | None = None

    def read(self, source: Mapping[str, Any]) -> Any:
        """Return the argument's value."""
        value = source.get(self.theirs, self.default)
        return self.default_from(source) if value is None and self.default_from is not None else value


@dataclass(frozen=True)
class Derived:
    """Arguments of our config that no single field holds.

    Attributes:
        read: Returns the arguments by name from a config.json; raises ConfigError, whose message is one line of the error.
        write: Puts the arguments into a config.json.
    """

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Mapping[str, Any], dict[str, Any]], None]


@dataclass(frozen=True)
class Require:
    """A field whose other values we do not build.

    Attributes:
        theirs: The field's name in config.json.
        allowed: The values that are built; the first is what an absent field means.
        reason: What is not built, for the message.
        tasks: The tasks that the field matters for; empty: all.
    """

    theirs: str
    allowed: tuple[object, ...]
    reason: str
    tasks: tuple[str, ...] = ()


class _Asked(dict[str, Any]):
    """An empty config that remembers which fields were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_asked: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.append(key)
        return default

    def __contains__(self, key: object) -> bool:
        self.keys_asked.append(str(key))
        return False

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.append(key)
        raise ConfigError(f"{key}: expected a value, found nothing")


@dataclass(frozen=True)
class ConfigTable:
    """The fields of a family's config, both ways.

    Attributes:
        fields: The table.
        require: What is refused.
        derived: Arguments that no single field holds.
    """

    fields: tuple[Field, ...]
    require: tuple[Require, ...] = ()
    derived: tuple[Derived, ...] = ()

    def keys(self) -> dict[str, tuple[str, Any]]:
        """Return each field of config.json that is understood, with our argument's name and what an absent field means.

        Fields that only together give an argument have its name, or those of all that they give, and null.
        """
        found: dict[str, tuple[str, Any]] = {}
        for field in self.fields:
            names = [found[field.theirs][0]] if field.theirs in found else []
            found[field.theirs] = (", ".join([*names, field.ours]), field.default)
        for part in self.derived:
            asked = _Asked()
            names = []
            with contextlib.suppress(ConfigError):  # some need a field that an empty config has not
                names = list(part.read(asked))
            found |= {key: (", ".join(names), None) for key in asked.keys_asked if key not in found}
        return found

    def to_ours(self, source: Mapping[str, Any], task: str = "base") -> dict[str, Any]:
        """Read our config's arguments from a config.json.

        Args:
            source: The parsed file.
            task: What the model is loaded for; some requirements hold for some tasks only.

        Raises:
            ConfigError: One error that lists every field with a value that is not allowed.
        """
        problems = [*self._unmet(source, task)]
        values: dict[str, Any] = {}
        for field in self.fields:
            stated = source.get(field.theirs, field.default)
            expected = None if stated is None and field.default_from is not None else field.check(stated)
            if expected is not None:
                problems.append(f"{field.theirs}: expected {expected}, found {_shown(stated)}")
        problems += _label_problems(source)
        if not problems:  # what is derived from other fields needs those to be right
            values = {field.ours: field.read(source) for field in self.fields}
            for part in self.derived:
                try:
                    values |= part.read(source)
                except ConfigError as error:
                    problems.append(str(error))
        if problems:
            raise ConfigError(f"config.json cannot be used:\n{listing(problems)}")
        values["label_names"] = read_label_names(source)
        values["num_labels"] = _num_labels(source)
        return values

    def to_theirs(self, values: Mapping[str, Any], source: Mapping[str, Any] | None) -> dict[str, Any]:
        """Write our config's arguments into a config.json.

        Args:
            values: Our config's arguments by name.
            source: The config.json that the model was read from, or None. It is the start; a field is only written where reading
                it back would give another value, so an untouched config comes out equal.
        """
        result = dict(source or {})
        for field in self.fields:
            if source is None or not _same(field.read(source), values[field.ours]):
                result[field.theirs] = values[field.ours]
        for part in self.derived:
            if source is None or any(not _same(value, values[name]) for name, value in part.read(source).items()):
                part.write(values, result)
        if source is None:
            result.update({need.theirs: need.allowed[0] for need in self.require if isinstance(need.allowed[0], bool)})
        _write_labels(result, values.get("num_labels", 2), values.get("label_names"))
        return result

    def _unmet(self, source: Mapping[str, Any], task: str) -> list[str]:
        lines = []
        for need in self.require:
            value = source.get(need.theirs, need.allowed[0])
            if (not need.tasks or task in need.tasks) and not any(_same(value, allowed) for allowed in need.allowed):
                known = " or ".join(_shown(allowed) for allowed in need.allowed)
                lines.append(f"{need.theirs}: expected {known}, found {_shown(value)}; {need.reason}")
        return lines


def _same(first: object, second: object) -> bool:
    """Compare two JSON values; 0 is not False and 1 is not True."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def _shown(value: object) -> str:
    text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_LABEL_FIELDS = ("id2label", "label2id", "num_labels", "_num_labels")


def _label_problems(source: Mapping[str, Any]) -> list[str]:
    names = source.get("id2label")
    if names is not None:
        if not isinstance(names, dict):
            return [f"id2label: expected an object of label names by id, found {_shown(names)}"]
        wanted = {str(index) for index in range(len(names))}
        strange = next((key for key in names if str(key) not in wanted), _MISSING)
        if strange is not _MISSING:
            return [f"id2label: expected the ids 0 to {len(names) - 1}, found {_shown(strange)}"]
        unnamed = next((key for key, name in names.items() if not isinstance(name, str | int | float)), _MISSING)
        if unnamed is not _MISSING:
            return [f"id2label: expected a name for label {unnamed}, found {_shown(names[unnamed])}"]
    expected = size(2**20)
    counts = [(key, source[key]) for key in ("num_labels", "_num_labels") if source.get(key) is not None]
    lines = [f"{key}: expected {expected(value)}, found {_shown(value)}" for key, value in counts if expected(value)]
    count = source.get("num_labels")
    if not lines and names and count not in (None, len(names)):
        lines = [f"num_labels: expected {len(names)}, the length of id2label, found {count}. Remove one of the two fields"]
    return lines


def read_label_names(source: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of the labels by id from `id2label`, or None where the config has none."""
    names = source.get("id2label")
    if not names:
        return None
    by_id = {int(key): str(name) for key, name in names.items()}
    return tuple(by_id[index] for index in range(len(by_id)))


def _num_labels(source: Mapping[str, Any]) -> int:
    """Count the labels as transformers does: `id2label`, or the count fields (the second is of 2020), else 2."""
    names = read_label_names(source)
    if names is not None:
        return len(names)
    counts = [source[key] for key in ("num_labels", "_num_labels") if source.get(key) is not None]
    return int(counts[0]) if counts else 2


def _write_labels(result: dict[str, Any], num_labels: int, names: Sequence[str] | None) -> None:
    """Put the labels into a config.json that says something else, as transformers writes them."""
    names = tuple(names) if names is not None else None
    if read_label_names(result) == names and _num_labels(result) == num_labels:
        return
    for key in _LABEL_FIELDS:
        result.pop(key, None)
    if names is None and num_labels == 2:
        return
    names = names or tuple(f"LABEL_{index}" for index in range(num_labels))
    result["id2label"] = {str(index): name for index, name in enumerate(names)}
    result["label2id"] = {name: index for index, name in enumerate(names)}
