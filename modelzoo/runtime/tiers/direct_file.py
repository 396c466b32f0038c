"""Files of fixed size that are read and written past the page cache, into memory of our own.

Buffered writing of large files ran at a fraction of the disk's speed, and the page cache counts against a memory limit. Where a
file system refuses direct access (tmpfs), ordinary access is used and its pages are given back at once.
"""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from modelzoo.errors import SaveError

__all__ = ["ALIGNMENT", "Buffer", "DirectFile"]

ALIGNMENT = 4096
"""Bytes to which offsets, lengths and memory of direct access are aligned."""
REQUEST_BYTES = 16 * 2**20
GONE = "something else cleans this folder: give another memory.disk.path, and continue from the last checkpoint"
CUT = "it was cut, or the disk has failed; continue from the last checkpoint"


class Buffer:
    """Page-aligned memory, seen as float32 values and as bytes.

    Args:
        elements: float32 values, a multiple of 1024.
    """

    def __init__(self, elements: int) -> None:
        self._memory = mmap.mmap(-1, max(4 * elements, ALIGNMENT))
        self.values: Tensor = torch.frombuffer(self._memory, dtype=torch.float32, count=max(elements, 1))
        self.view = memoryview(self._memory)
        self.size_bytes = 4 * elements


class DirectFile:
    """One file of the disk tier, with its whole length reserved.

    Args:
        path: Must not exist.
        size_bytes: A multiple of `ALIGNMENT`.
        owner: Whose values it holds, for messages.

    Raises:
        SaveError: No room, no right, or the file exists.
    """

    def __init__(self, path: Path, size_bytes: int, owner: str = "") -> None:
        self.path, self.size_bytes, self._owner = path, size_bytes, owner
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(file, 0, max(size_bytes, 1))
                self._file, self.is_direct = self._reopen(file)
            except OSError:
                os.unlink(path)
                raise
            finally:
                os.close(file)
        except OSError as error:
            raise SaveError(
                f"{path}: disk tier: {owner} needs {size_bytes} bytes: {error.strerror}; free some or give another memory.disk.path"
            ) from error

    def _reopen(self, file: int) -> tuple[int, bool]:
        try:
            return os.open(self.path, os.O_RDWR | getattr(os, "O_DIRECT", 0)), hasattr(os, "O_DIRECT")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.dup(file), False

    def read(self, offset: int, into: memoryview, what: str = "values") -> None:
        """Fill `into` from the file.

        Raises:
            SaveError: The file is shorter than it was, is gone, or cannot be read.
        """
        self._transfer(f"read of {what}", os.preadv, offset, into)

    def write(self, offset: int, values: memoryview, what: str = "values") -> None:
        """Write `values` into the file.

        Raises:
            SaveError: The file is shorter than it was, is gone, or cannot be written.
        """
        self._transfer(f"write of {what}", os.pwritev, offset, values)

    def _transfer(self, doing: str, call: Callable[[int, list[memoryview], int], int], offset: int, memory: memoryview) -> None:
        where = f"{self.path}: disk tier: {doing} of {self._owner}"
        done = 0
        while done < len(memory):
            piece = memory[done : done + REQUEST_BYTES]
            # writing past the end would fill a file that was cut with zeros, which would then be read as values
            state = os.fstat(self._file)
            if state.st_size < self.size_bytes:
                raise SaveError(f"{where}: expected a file of {self.size_bytes} bytes, found {state.st_size}; {CUT}")
            if not state.st_nlink:
                raise SaveError(f"{where}: the file was deleted under way; {GONE}")
            try:
                count = call(self._file, [piece], offset + done)
            except OSError as error:
                raise SaveError(f"{where}: {len(piece)} bytes at {offset + done}: {error.strerror}; {CUT}") from error
            if count != len(piece):
                raise SaveError(f"{where}: expected {len(piece)} bytes at {offset + done}, found {count}; {CUT}")
            done += count
        if not self.is_direct:
            os.posix_fadvise(self._file, offset, len(memory), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close and remove the file."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)
