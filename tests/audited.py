"""What Python does while a block runs, by its audit events: which files it opens, which processes it starts."""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

_NOTED: list[tuple[str, tuple[Any, ...]]] = []
_WANTED: set[str] = set()


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _WANTED:
        _NOTED.append((event, arguments))


@contextmanager
def audited(events: Collection[str]) -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """Collect events with their arguments, as `sys.addaudithook` tells them. A hook cannot be removed: there is one, added once.

    Args:
        events: Their names: "open", "subprocess.Popen".
    """
    if not getattr(sys, "_modelzoo_audit_hook", False):
        sys.addaudithook(_note)
        sys._modelzoo_audit_hook = True  # type: ignore[attr-defined]  # a module imported twice adds no second one
    _NOTED.clear()
    _WANTED.update(events)
    try:
        yield _NOTED
    finally:
        _WANTED.clear()
