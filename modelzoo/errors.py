"""Every error that modelzoo raises on purpose.

A message says what was expected, what came (file, key, value, rank) and what to do, in one or a few lines. `exit_code` is what
the `modelzoo` command returns when the error ends it; 75 (preempted, can be resumed) belongs to the command alone.
"""

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "InputError",
    "ModelZooError",
    "NonFiniteError",
    "OutOfMemoryError",
    "RankError",
    "SaveError",
    "closest",
    "listing",
]


class ModelZooError(Exception):
    """The root of every error that modelzoo raises on purpose."""

    exit_code = 1


class InputError(ModelZooError, ValueError):
    """What the user gave cannot be used; nothing was started and nothing was written."""

    exit_code = 2


class ConfigError(InputError):
    """A setting, a recipe or a model config is wrong."""


class DataError(InputError):
    """A data file, a row, a label or a token id is wrong."""


class CheckpointError(InputError):
    """A checkpoint's files, keys, shapes, dtypes or values are wrong."""


class SaveError(ModelZooError, OSError):
    """Something could not be written; what was there before is intact."""

    exit_code = 3


class RankError(ModelZooError, RuntimeError):
    """A rank was lost, is late, or disagrees with the others."""

    exit_code = 4


class NonFiniteError(ModelZooError, ArithmeticError):
    """A loss or a gradient is NaN or infinite; the step was not taken."""

    exit_code = 5


class OutOfMemoryError(ModelZooError, MemoryError):
    """A step needed more memory than there is; the checkpoints are intact."""

    exit_code = 6


def closest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` of the known names that a misspelt `word` resembles, best first."""
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.6)


def listing(problems: Sequence[str], limit: int = 20) -> str:
    """Return the problems as indented lines, the first `limit` of them and a count of the rest.

    Args:
        problems: One line each.
        limit: How many lines are shown, at least 1.
    """
    lines = [f"  {problem}" for problem in problems[:limit]]
    if len(problems) > limit:
        lines.append(f"  ... and {len(problems) - limit} more")
    return "\n".join(lines)
