"""Names that people know from Hugging Face: which setting each means here.

The names that translate one to one stand beside the fields of the schema, those that mean no setting in `advice`.
"""

import dataclasses
from typing import Any

from modelzoo.config.advice import advice_for
from modelzoo.config.keys import list_keys
from modelzoo.config.schema import RunSettings
from modelzoo.config.yaml_file import KeyPath

__all__ = ["Translation", "short_names", "translate"]

_STRATEGIES = {
    "evaluation_strategy": ("evaluation", "every", "eval_steps"),
    "eval_strategy": ("evaluation", "every", "eval_steps"),
    "save_strategy": ("checkpoint", "every", "save_steps"),
}


@dataclasses.dataclass(frozen=True)
class Translation:
    """What a foreign name means here: a path and value, or advice where it means nothing exactly."""

    path: KeyPath | None = None
    value: Any = None
    advice: str | None = None


def short_names() -> dict[str, list[str]]:
    """Return every alias and every last part of a path -> the dotted paths that it could mean."""
    names: dict[str, list[str]] = {}
    for key in list_keys(RunSettings):
        if "." not in key.path:
            continue
        for name in {*key.aliases, key.path.rpartition(".")[2]}:
            names.setdefault(name, []).append(key.path)
    return names


def translate(name: str, value: Any) -> Translation | None:
    """Return what a name that is no path of the schema means, or None if nobody uses that name.

    Args:
        name: A key without a dot, such as learning_rate.
        value: Its value, which is kept but for the strategies (evaluation_strategy=epoch is evaluation.every=1ep).
    """
    if name in _STRATEGIES:
        return _translate_strategy(name, value)
    paths = short_names().get(name, [])
    if len(paths) == 1:
        return Translation(path=tuple(paths[0].split(".")), value=value)
    if paths:
        return Translation(advice=f"could be {' or '.join(paths)}; write one of them")
    advice = advice_for(name)
    return None if advice is None else Translation(advice=advice)


def _translate_strategy(name: str, value: Any) -> Translation:
    """Return evaluation.every or checkpoint.every for a strategy of TrainingArguments."""
    section, key, steps_name = _STRATEGIES[name]
    if value == "epoch":
        return Translation(path=(section, key), value="1ep")
    if value in ("no", None, False):
        return Translation(path=(section, key), value=None)
    return Translation(advice=f"use {section}.{key}=STEPS or 0.5ep (Hugging Face: {name} with {steps_name})")
