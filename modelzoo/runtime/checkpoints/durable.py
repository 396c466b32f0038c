"""A file that is hashed while it is written, and on the disk when it is closed."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["DurableFile", "WrittenFile", "file_sha256"]

PIECE_BYTES = 8 * 2**20
"""What is hashed while the same is written: large beside the cost of a hand-over, small beside the page cache."""

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file on disk as it was written."""

    size_bytes: int
    sha256: str


class DurableFile:
    """A new file, used as a context manager; its size and hash are known after the block, when its content is on the disk.

    A second thread hashes each piece while the first writes it, without a copy.

    Args:
        path: A file that does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    @property
    def facts(self) -> WrittenFile:
        """What was written so far."""
        return WrittenFile(self._size_bytes, self._digest.hexdigest())

    def write(self, content: Piece) -> None:
        """Append bytes.

        Raises:
            OSError: The disk is full.
        """
        view = memoryview(content)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            hashed = self._hasher.submit(self._digest.update, piece)
            try:
                _write_all(self._handle, piece)
            finally:
                hashed.result()
            self._size_bytes += len(piece)

    def __enter__(self) -> Self:
        self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._hasher = ThreadPoolExecutor(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._hasher.shutdown()
        try:
            if kind is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hex, reading it in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _write_all(handle: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(handle, piece) :]
