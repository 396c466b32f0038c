"""`metrics.jsonl`: one line a step and one an evaluation, append only, and cut back to the resumed step after a stop.

So the file of a run that was stopped and resumed equals that of one that was not, apart from times.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelzoo.report import read_records

__all__ = ["Records", "read_records"]


class Records:
    """Appends lines to the metrics file of a run.

    Args:
        path: The file; None keeps nothing (ranks other than 0).
        step: Lines of later steps are removed first, with a line that a kill cut short.
        is_evaluation_due: Whether the evaluation of that step is still to come; then its line is removed as well.
    """

    def __init__(self, path: Path | None, step: int = 0, *, is_evaluation_due: bool = False) -> None:
        self._path = path
        if path is None:
            return
        kept = [line for line in read_records(path) if line["step"] <= step] if path.exists() else []
        if is_evaluation_due:
            kept = [line for line in kept if line["step"] < step or "evaluation" not in line]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(_line(values) for values in kept), encoding="utf-8")
        os.replace(temporary, path)
        self._file = path.open("a", encoding="utf-8")

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a line; it must have a `step`."""
        if self._path is not None:
            self._file.write(_line(values))

    def sync(self) -> None:
        """Make all lines durable."""
        if self._path is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Make all lines durable and close the file."""
        if self._path is not None and not self._file.closed:
            self.sync()
            self._file.close()


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(", ", ": ")) + "\n"
