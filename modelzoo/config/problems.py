"""What is wrong with settings, in words: unknown keys with suggestions, and pydantic's findings in our own form."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from modelzoo.config.advice import ADVICE, advice_for
from modelzoo.config.aliases import short_names
from modelzoo.config.keys import expectation, list_keys, section_of
from modelzoo.config.schema import RunSettings
from modelzoo.config.yaml_file import KeyPath
from modelzoo.errors import closest

__all__ = ["describe_invalid", "find_field", "show_value", "suggest_key"]


def find_field(path: KeyPath) -> FieldInfo | None:
    """Return the schema's field at `path` (a section or a single setting), or None."""
    model: type[BaseModel] | None = RunSettings
    field: FieldInfo | None = None
    for name in path:
        field = model.model_fields.get(name) if model is not None else None
        if field is None:
            return None
        model = section_of(field)
    return field


def suggest_key(name: str) -> str:
    """Return what an unknown key could have meant: "did you mean optimizer.lr (Hugging Face: learning_rate)?"."""
    meant = short_names()
    paths = [key.path for key in list_keys(RunSettings)]
    first, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if rest and closest(first, ["columns"]):  # its keys are the user's own
        return f"did you mean data.columns.{rest}?"
    advice = advice_for(last)
    if advice is not None and last not in meant:
        return advice
    if last not in meant:
        near = closest(name, paths) if "." in name else []
        near = near or closest(last, [*meant, *ADVICE])
        last = near[0] if near else last
    if last in ADVICE:
        return f"did you mean {last}? {ADVICE[last]}"
    if last in paths:
        return f"did you mean {last}?"
    if last in meant:
        targets = " or ".join(meant[last])
        is_alias = all(path.rpartition(".")[2] != last for path in meant[last])
        return f"did you mean {targets}{f' (Hugging Face: {last})' if is_alias else ''}?"
    return "all keys: modelzoo explain"


def show_value(value: Any) -> str:
    """Return a value as YAML people write it, cut to a line."""
    words: dict[object, str] = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def describe_invalid(error: ValidationError, where: Callable[[KeyPath], str]) -> Iterator[str]:
    """Yield one line for each setting that pydantic refused.

    Args:
        error: What pydantic found.
        where: Says for a path where its value was written ("recipe.yaml:12"), or "" if nowhere.
    """
    seen: set[KeyPath] = set()
    for item in error.errors(include_url=False):
        path = _known_part(tuple(str(part) for part in item["loc"]))
        name, place = ".".join(path), where(path)
        suffix = f" ({place})" if place else ""
        own = item.get("ctx", {}).get("error")
        field = find_field(path) if path else None
        if path and path in seen:
            continue
        seen.add(path)
        if field is None or (item["type"] == "value_error" and section_of(field) is not None):
            yield f"{name + ': ' if name else ''}{own or item['msg']}{suffix}"
        elif item["type"] == "missing":
            yield f"{name}: is missing; expected {_expected(field)}"
        else:
            found = show_value(item["input"])
            yield f"{name}: expected {_expected(field)}; found {found}{_quote_hint(field, item['input'])}{suffix}"


def _known_part(path: KeyPath) -> KeyPath:
    """Return the longest part of `path` that the schema knows; pydantic adds list positions and union branches."""
    while path and find_field(path) is None:
        path = path[:-1]
    return path


def _expected(field: FieldInfo) -> str:
    """Return what a field accepts; a section is a mapping."""
    section = section_of(field)
    return expectation(field) if section is None else f"a mapping with {', '.join(section.model_fields)}"


def _quote_hint(field: FieldInfo, found: Any) -> str:
    """Return the advice to quote where a text was expected and YAML read something else."""
    return "; put it in quotes" if "text" in _expected(field) and isinstance(found, int | float) else ""
