"""A board on which ranks leave notes for each other: where they are, and why they stopped.

A note outlives the rank that wrote it, which is the point: it says where a rank was that can no longer be asked.
"""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

__all__ = ["BOARD_VARIABLE", "Board", "FolderBoard", "board_of"]

BOARD_VARIABLE = "MODELZOO_BOARD"
"""Environment variable with the folder of the board, set by what started the ranks of this machine."""


class Board(Protocol):
    """Notes under names; values are what JSON can hold. A board that cannot be reached holds nothing and takes nothing."""

    def set(self, name: str, value: Any) -> None:
        """Write a note in place of the one before."""
        ...

    def get(self, name: str) -> Any:
        """Return a note, or None where there is none."""
        ...

    def set_first(self, name: str, value: Any) -> Any:
        """Write a note unless there is one, and return the one that stays."""
        ...


class FolderBoard:
    """A board in a folder of this machine: a file a note, written in place in microseconds.

    Args:
        folder: Exists; what made it removes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, int] = {}

    def set(self, name: str, value: Any) -> None:
        """Write a note in place of the one before; one rank writes a name."""
        if name not in self._open:
            self._open[name] = os.open(self._path(name), os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(self._open[name], json.dumps(value).encode() + b"\n", 0)

    def get(self, name: str) -> Any:
        """Return a note, or None where there is none."""
        try:
            text = self._path(name).read_bytes()
            return json.loads(text.partition(b"\n")[0])
        except (OSError, ValueError):  # not there yet, or half written
            return None

    def set_first(self, name: str, value: Any) -> Any:
        """Write a note unless there is one, and return the one that stays."""
        temporary = self.folder / uuid.uuid4().hex
        temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")
        try:
            os.link(temporary, self._path(name))
        except FileExistsError:
            return self.get(name)
        finally:
            temporary.unlink()
        return value

    def _path(self, name: str) -> Path:
        return self.folder / name.replace("/", "-")


def board_of(environment: Mapping[str, str]) -> FolderBoard | None:
    """Return the board of a rank that was started with one."""
    folder = environment.get(BOARD_VARIABLE)
    return FolderBoard(Path(folder)) if folder and Path(folder).is_dir() else None
