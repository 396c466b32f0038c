"""What a setting is: the facts that stand beside each field of the schema, and the list of all settings read from it."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = ["Key", "KeyInfo", "expectation", "list_keys", "section_of"]

_KINDS: dict[object, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
_BOUNDS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}


@dataclasses.dataclass(frozen=True)
class Key:
    """What a field's type does not say.

    Args:
        unit: The unit of the value, or "" where it has none.
        aliases: Names of the same setting in Hugging Face's TrainingArguments and example scripts.
        expects: What the value must be, where the type alone would not tell.
    """

    unit: str = ""
    aliases: tuple[str, ...] = ()
    expects: str | None = None


@dataclasses.dataclass(frozen=True)
class KeyInfo:
    """One setting as `modelzoo explain` shows it: dotted path, meaning, accepted values, unit, default and aliases."""

    path: str
    meaning: str
    expects: str
    unit: str
    default: object
    required: bool
    aliases: tuple[str, ...]


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model class of a field that is a section of settings, or None for a single setting."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def expectation(field: FieldInfo) -> str:
    """Return what a field accepts as a phrase: "an integer >= 1 or null"."""
    facts = _facts(field)
    if facts.expects is not None:
        return facts.expects
    return _phrase(field.annotation, tuple(field.metadata))


def list_keys(model: type[BaseModel], prefix: str = "") -> Iterator[KeyInfo]:
    """Yield every setting below `model`, in the order of the schema, sections flattened to dotted paths."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is not None:
            yield from list_keys(section, f"{prefix}{name}.")
            continue
        facts = _facts(field)
        meaning = " ".join((field.description or "").split())
        required = field.is_required()
        default = None if required else field.get_default(call_default_factory=True, validated_data={})
        yield KeyInfo(f"{prefix}{name}", meaning, expectation(field), facts.unit, default, required, facts.aliases)


def _facts(field: FieldInfo) -> Key:
    """Return the Key beside a field, that of its type where it has none, or an empty one."""
    return next((item for item in reversed(field.metadata) if isinstance(item, Key)), Key())


def _phrase(annotation: Any, metadata: tuple[object, ...]) -> str:
    """Return the phrase for a type and the bounds beside it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _phrase(arguments[0], (*metadata, *arguments[1:]))
    if origin in (types.UnionType, typing.Union):
        parts = ["null" if part is type(None) else _phrase(part, metadata) for part in arguments]
        return " or ".join(parts)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin is list:
        least = next((item.min_length for item in metadata if isinstance(item, MinLen)), 0)
        return f"a list of {least} or more texts" if least else "a list of texts"
    if origin is dict:
        return "a mapping of text to text"
    bounds = [
        f"{sign} {_number(getattr(item, attribute))}"
        for item in metadata
        for kind, (sign, attribute) in _BOUNDS.items()
        if isinstance(item, kind)
    ]
    return " ".join([_KINDS.get(annotation, str(annotation)), " and ".join(bounds)]).rstrip()


def _number(value: float) -> str:
    """Return a bound as people write it: 1048576 in full, 2**63 as 9.22337e+18."""
    return str(value) if isinstance(value, int) and value < 10**9 else f"{value:g}"
