"""From a recipe and what was typed beside it to checked run settings, or to one error that lists everything wrong."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from modelzoo.config.aliases import translate
from modelzoo.config.keys import section_of
from modelzoo.config.overrides import Setting, parse_overrides
from modelzoo.config.paths import absolute, missing_file
from modelzoo.config.problems import describe_invalid, find_field, show_value, suggest_key
from modelzoo.config.recipes import find_recipe
from modelzoo.config.schema import RunSettings
from modelzoo.config.yaml_file import KeyPath, read_mapping
from modelzoo.errors import ConfigError, listing

__all__ = ["Resolved", "dump_settings", "load_settings", "resolve_settings"]

# What is typed on the command line takes the place of what the recipe says about the same question in another key.
_REPLACES: dict[KeyPath, tuple[KeyPath, ...]] = {
    ("data", "train"): (("data", "name"),),
    ("data", "name"): (("data", "train"), ("data", "validation"), ("data", "test")),
    ("train", "batch_size"): (("train", "batch_tokens"),),
    ("train", "batch_tokens"): (("train", "batch_size"),),
}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Checked settings, the recipe file they came from, and what was read differently from how it was written."""

    settings: RunSettings
    file: Path
    notes: tuple[str, ...]


def load_settings(recipe: str, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the settings of a recipe with overrides.

    Args:
        recipe: Name of a shipped recipe, a YAML file, or a folder with a recipe.yaml.
        overrides: "key=value" or "--key", "value"; dotted paths, `model=PATH` for model.name, Hugging Face's names.

    Raises:
        ConfigError: Something is wrong; the message lists every problem, not the first alone.
    """
    return resolve_settings(recipe, overrides).settings


def resolve_settings(recipe: str, overrides: Sequence[str] = ()) -> Resolved:
    """Return the settings of a recipe with overrides, and the notes on how its keys were read.

    Args:
        recipe: Name of a shipped recipe, a YAML file, or a folder with a recipe.yaml.
        overrides: As for `load_settings`.

    Raises:
        ConfigError: Something is wrong; the message lists every problem.
    """
    file = find_recipe(recipe)
    mapping, lines = read_mapping(file)
    mapping.setdefault("recipe", file.parent.name if file.name == "recipe.yaml" else file.stem)
    problems: list[str] = []
    notes: list[str] = []
    written = [Setting(path, value, None, _place(file, lines, path)) for path, value in _leaves(mapping)]
    values = _read(written, file.parent, problems, notes)
    typed = _read(parse_overrides(overrides, problems), Path.cwd(), problems, notes)
    for path in typed:
        for other in _REPLACES.get(path, ()):
            if other in values and other not in typed and values[other].value is not None:
                notes.append(f"{'.'.join(other)}={values[other].value} of the recipe gives way to {'.'.join(path)}")
                del values[other]
    values |= typed
    for path, setting in values.items():
        if (problem := missing_file(path, setting.value)) is not None:
            problems.append(f"{setting.name}={problem} ({setting.origin})")
    settings = _validate(values, problems)
    if settings is None or problems:
        raise ConfigError(_report(recipe, problems))
    return Resolved(settings, file, tuple(notes))


def dump_settings(settings: RunSettings) -> str:
    """Return settings as YAML text that `load_settings` reads back equal."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def _leaves(mapping: dict[str, Any], prefix: KeyPath = ()) -> Iterable[tuple[KeyPath, Any]]:
    """Yield the path and value of every single setting in a nested mapping."""
    for name, value in mapping.items():
        path = (*prefix, str(name))
        field = find_field(path)
        is_section = field is not None and section_of(field) is not None
        if isinstance(value, dict) and (is_section or field is None) and value:
            yield from _leaves(value, path)
        elif not (is_section and value in (None, {})):
            yield path, value


def _place(file: Path, lines: dict[KeyPath, int], path: KeyPath) -> str:
    """Return "recipe.yaml:12" for a path that stands in the file."""
    return f"{file.name}:{lines[path]}" if path in lines else file.name


def _read(settings: Iterable[Setting], base: Path, problems: list[str], notes: list[str]) -> dict[KeyPath, Setting]:
    """Return the settings under the schema's own paths; unknown ones and contradictions become problems."""
    values: dict[KeyPath, Setting] = {}
    for setting in settings:
        for resolved in _canonical(setting, problems, notes):
            path, is_typed = resolved.path, resolved.text is not None
            value = absolute(path, _as_text(resolved), base, is_typed=is_typed)
            resolved = dataclasses.replace(resolved, value=value)
            earlier = values.get(path)
            if earlier is not None and earlier.value != value:
                found = f"{show_value(earlier.value)} and {show_value(value)}"
                problems.append(f"{resolved.name}: is set twice, to {found} ({resolved.origin}); keep one")
            values[path] = resolved
    return values


def _canonical(setting: Setting, problems: list[str], notes: list[str]) -> Iterable[Setting]:
    """Yield `setting` under the schema's path: as it is, translated, or split into the parts of a mapping."""
    path, value = setting.path, setting.value
    if path == ("model",) and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield dataclasses.replace(setting, path=("model", "name"))
        return
    if path[:2] == ("data", "columns") and len(path) == 3:
        yield setting
        return
    field = find_field(path)
    if field is not None and section_of(field) is None:
        yield setting
    elif field is not None and isinstance(value, dict):
        for inner, inner_value in _leaves(value, path):
            yield from _canonical(dataclasses.replace(setting, path=inner, value=inner_value, text=None), problems, notes)
    elif field is not None:
        yield setting
    elif len(path) == 1 and (meant := translate(path[0], value)) is not None:
        if meant.path is None:
            problems.append(f"{setting.name}: {meant.advice} ({setting.origin})")
            return
        notes.append(f"{setting.name} is read as {'.'.join(meant.path)}={show_value(meant.value)} ({setting.origin})")
        yield dataclasses.replace(setting, path=meant.path, value=meant.value)
    else:
        problems.append(f"{setting.name}: is not known; {suggest_key(setting.name)} ({setting.origin})")


def _as_text(setting: Setting) -> Any:
    """Return the typed text itself where the schema wants text: output.name=007 is not the number 7."""
    field = find_field(setting.path)
    wants_text = field is not None and field.annotation in (str, str | None)
    is_number = isinstance(setting.value, int | float)
    return setting.text if wants_text and is_number and setting.text is not None else setting.value


def _validate(values: dict[KeyPath, Setting], problems: list[str]) -> RunSettings | None:
    """Return the checked settings, or None after adding what is wrong to `problems`."""
    nested: dict[str, Any] = {}
    for path, setting in sorted(values.items(), key=lambda item: len(item[0])):
        place = nested
        for name in path[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[path[-1]] = dict(setting.value) if isinstance(setting.value, dict) else setting.value
    try:
        return RunSettings.model_validate(nested)
    except ValidationError as error:
        problems.extend(describe_invalid(error, lambda path: values[path].origin if path in values else ""))
        return None


def _report(recipe: str, problems: Sequence[str]) -> str:
    """Return the message of the one error that lists all problems."""
    count = "1 setting" if len(problems) == 1 else f"{len(problems)} settings"
    return f"{count} of recipe {recipe} cannot be used\n{listing(problems)}\nnothing was started; all keys: modelzoo explain"
