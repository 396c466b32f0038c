"""From a recipe and what was typed beside it to checked run settings, or to one error that lists everything wrong."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
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
from modelzoo.quantities import counted

__all__ = ["Overrides", "Resolved", "change_settings", "dump_settings", "load_settings", "read_settings", "resolve_settings"]

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
    origins: Mapping[str, str]
    """Where each setting was set, by its path: a line of the recipe, or the command line; those left out are defaults."""


Overrides = Sequence[str] | Mapping[str, object]
"""Changes to a recipe: words of a command line ("train.epochs=1"), or a mapping ({"train": {"epochs": 1}})."""


def load_settings(recipe: str, overrides: Overrides = ()) -> RunSettings:
    """Return the settings of a recipe with overrides.

    Args:
        recipe: Name of a shipped recipe, a YAML file, a folder with a recipe.yaml, or the folder of a run.
        overrides: Words as typed ("key=value" or "--key", "value"; dotted paths, `model=PATH` for model.name, Hugging Face's
            names), or a mapping of the same keys, whose sections may be mappings.

    Raises:
        ConfigError: Something is wrong; the message lists every problem, not the first alone.
    """
    return resolve_settings(recipe, overrides).settings


def resolve_settings(recipe: str, overrides: Overrides = ()) -> Resolved:
    """Return the settings of a recipe with overrides, and the notes on how its keys were read.

    Args:
        recipe: Name of a shipped recipe, a YAML file, a folder with a recipe.yaml, or the folder of a run.
        overrides: As for `load_settings`.

    Raises:
        ConfigError: Something is wrong; the message lists every problem.
    """
    file = find_recipe(recipe)
    mapping, lines = read_mapping(file)
    mapping.setdefault("recipe", file.parent.name if file.name == "recipe.yaml" else file.stem)
    written = [Setting(path, value, None, _place(file, lines, path)) for path, value in _leaves(mapping)]
    settings, notes, origins = _resolve(f"recipe {recipe}", written, file.parent, overrides)
    return Resolved(settings, file, notes, origins)


def read_settings(file: Path) -> RunSettings:
    """Return the settings of a run as they were decided; the files that they name may be gone, or be on another machine.

    Args:
        file: Its resolved.yaml.

    Raises:
        ConfigError: The file is damaged; the message lists every problem.
    """
    mapping, lines = read_mapping(file)
    written = [Setting(path, value, None, _place(file, lines, path)) for path, value in _leaves(mapping)]
    return _resolve(f"{file}", written, file.parent, (), needs_files=False)[0]


def change_settings(base: RunSettings | None, changes: Mapping[str, object]) -> RunSettings:
    """Return settings that were made in Python: changes to others, or all that is set.

    Args:
        base: What is changed; it stays as it is. None begins with the defaults: at least `model` and `data` have to be given.
        changes: As the mapping of `load_settings`.

    Raises:
        ConfigError: Something is wrong; the message lists every problem.
    """
    mapping = {"recipe": "run"} if base is None else base.model_dump(mode="json")
    written = [Setting(path, value, None, "the settings") for path, value in _leaves(mapping)]
    return _resolve("this run" if base is None else f"recipe {base.recipe}", written, Path.cwd(), changes)[0]


def _resolve(
    what: str, written: list[Setting], base: Path, overrides: Overrides, *, needs_files: bool = True
) -> tuple[RunSettings, tuple[str, ...], dict[str, str]]:
    """Return the checked settings of `written`, whose paths are beside `base`, with overrides, how they were read, and origins.

    Files that the settings name are looked for where `needs_files`.
    """
    problems: list[str] = []
    notes: list[str] = []
    values = _read(written, base, problems, notes)
    given = _given(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides, problems)
    typed = _read(given, Path.cwd(), problems, notes)
    for path in typed:
        for other in _REPLACES.get(path, ()):
            if other in values and other not in typed and values[other].value is not None:
                notes.append(f"{'.'.join(other)}={values[other].value} of the recipe gives way to {'.'.join(path)}")
                del values[other]
    values |= typed
    for path, setting in values.items() if needs_files else ():
        if (problem := missing_file(path, setting.value)) is not None:
            problems.append(f"{setting.name}={problem} ({setting.origin})")
    settings = _validate(values, problems)
    if settings is None or problems:
        raise ConfigError(_report(what, problems))
    return settings, tuple(notes), {".".join(path): setting.origin for path, setting in values.items()}


def _given(changes: Mapping[str, object]) -> list[Setting]:
    """Return the settings in a mapping, whose keys may be dotted paths, as if they had been typed."""
    flat = [((*name.split("."), *path[1:]), value) for name in changes for path, value in _leaves({name: _plain(changes[name])})]
    return [Setting(path, value, str(value), "given in Python") for path, value in flat]


def _plain(value: object) -> object:
    """Return a value as YAML would hold it: paths as text, tuples as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


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


def _report(what: str, problems: Sequence[str]) -> str:
    """Return the message of the one error that lists all problems."""
    count = counted(len(problems), "setting")
    return f"{count} of {what} cannot be used\n{listing(problems)}\nnothing was started; all keys: modelzoo explain"
