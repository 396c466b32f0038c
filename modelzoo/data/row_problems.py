"""What is wrong with rows, all of it in one error: by kind, each with its rows and what to do."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from modelzoo.errors import DataError, listing
from modelzoo.quantities import counted

__all__ = ["RowChecks", "RowsError", "problem_rows"]

_OF_A_KIND = 10
"""Rows that are shown of each kind where there are several kinds."""


class RowsError(DataError):
    """Rows have problems.

    Args:
        message: Names the rows, counted from 1.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.kinds: Mapping[str, Sequence[str]] = {}
        """The problems, a line each, by what to do about them."""


def problem_rows(source: str, problems: Sequence[str], action: str) -> RowsError:
    """Return one error that lists the rows with a problem, 20 at most.

    Args:
        source: What the rows are called.
        problems: A line each, at least one.
        action: What to do about them.
    """
    if len(problems) == 1:
        error = RowsError(f"{source}: {problems[0]}; {action}")
    else:
        error = RowsError(f"{source}: {len(problems):,} rows have a problem; {action}\n{listing(problems)}")
    error.kinds = {action: problems}
    return error


class RowChecks:
    """Checks that all run before any of them ends the reading: each in a `with` of its own, then `finish`.

    Args:
        source: What the rows are called in the error.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._kinds: dict[str, list[str]] = {}
        self._errors: list[DataError] = []

    def __enter__(self) -> "RowChecks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, DataError):
            return False
        self._errors.append(error)
        for action, problems in error.kinds.items() if isinstance(error, RowsError) else ():
            known = self._kinds.setdefault(action, [])
            known += [problem for problem in problems if problem not in known[:_OF_A_KIND]]
        return True

    def finish(self) -> None:
        """Raise what the checks found, if anything.

        Raises:
            DataError: Of all kinds of problems together.
        """
        if len(self._errors) == 1:
            raise self._errors[0]
        if not self._errors:
            return
        kinds = list(self._kinds.items())
        texts = [str(problem_rows(self._source, kinds[0][1], kinds[0][0]))] if len(kinds) == 1 else [self._text()] if kinds else []
        error = RowsError("\n".join([*texts, *(str(other) for other in self._errors if not isinstance(other, RowsError))]))
        error.kinds = self._kinds
        raise error

    def _text(self) -> str:
        total = sum(map(len, self._kinds.values()))
        lines = [f"{self._source}: {counted(total, 'problem')} of {counted(len(self._kinds), 'kind')} in its rows"]
        for action, problems in self._kinds.items():
            shown = [f"    {problem}" for problem in problems[:_OF_A_KIND]]
            more = len(problems) - len(shown)
            lines += [f"  {counted(len(problems), 'row')}: {action}", *shown, *([f"    ... and {more:,} more"] if more else [])]
        return "\n".join(lines)
