"""Settings from the command line: key=value, --key value and --key=value, with dotted paths."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from modelzoo.config.yaml_file import KeyPath, parse_value
from modelzoo.errors import ConfigError

__all__ = ["Setting", "parse_overrides"]

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z_][A-Za-z0-9_]*)*")

_PAIR = re.compile(_KEY.pattern + "=")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value that somebody set: its path as written, the value read, its text, and where it stands."""

    path: KeyPath
    value: Any
    text: str | None
    origin: str

    @property
    def name(self) -> str:
        """The path as people write it: train.batch_size."""
        return ".".join(self.path)


def parse_overrides(words: Sequence[str], problems: list[str]) -> list[Setting]:
    """Return the settings that command-line words hold, in their order.

    Args:
        words: "key=value", or "--key" followed by its value, or "--key=value".
        problems: Gets one line for each word that is no setting.
    """
    settings: list[Setting] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if word.startswith("--") and not equals:
            if not remaining or remaining[0].startswith("--") or _PAIR.match(remaining[0]):
                problems.append(f"{word}: expected a value after it; write {word} VALUE or {key}=VALUE")
                continue
            text, equals = remaining.pop(0), "="
        if not equals or not _KEY.fullmatch(key):
            problems.append(f"{word}: expected key=value, as in train.epochs=3")
            continue
        path = tuple(key.replace("-", "_").split(".")) if word.startswith("--") else tuple(key.split("."))
        try:
            settings.append(Setting(path, parse_value(text), text, "the command line"))
        except ConfigError as error:
            problems.append(f"{key}: {error}")
    return settings
