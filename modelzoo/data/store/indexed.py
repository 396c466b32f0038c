"""Documents as token ids in two files, in the form that Megatron-LM reads: NAME.bin holds the ids, NAME.idx where each begins.

The index: a magic of nine bytes, a version (u64, 1), the code of the ids' type (u8), the numbers of sequences and of document marks
(u64 each), each sequence's length (i32) and first byte (i64), and the document marks (i64: 0, 1, ..., sequences; a document is one
sequence here). All numbers are little-endian. Source: Megatron-LM, core/datasets/indexed_dataset.py.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from modelzoo.errors import DataError

__all__ = ["IndexedTokens", "block_sums", "id_type", "write_index"]

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
BLOCK_BYTES = 2**20
CODES: dict[int, str] = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Type of the ids by Megatron's number of it; its two float types hold no ids."""


def id_type(vocab_size: int) -> np.dtype[np.generic]:
    """Return the smallest type for ids below `vocab_size` that Megatron writes too: u16 or i32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<i4")


def block_sums(path: Path) -> tuple[int, ...]:
    """Return the CRC-32 of each block of 1 MiB of a file of ids."""
    with path.open("rb") as file:
        return tuple(zlib.crc32(block) for block in iter(lambda: file.read(BLOCK_BYTES), b""))


def write_index(path: Path, lengths: np.ndarray, dtype: np.dtype[np.generic]) -> None:
    """Write the index of documents that stand one after the other.

    Args:
        path: Of the .idx file; replaced.
        lengths: (documents,) tokens of each.
        dtype: Of the ids.
    """
    starts = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) if len(lengths) else np.empty(0, dtype=np.int64)
    code = {name: code for code, name in CODES.items()}[dtype.str]
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write((starts * dtype.itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


class IndexedTokens(Sequence[np.ndarray]):
    """The documents of a NAME.bin and NAME.idx, memory-mapped.

    Args:
        path: Of the .bin file.
        sums: What `block_sums` gave of it; each block is compared when it is first read. None: nobody knows them.

    Raises:
        DataError: If a file is missing, no index of this form, cut off, or longer than the index says.
    """

    def __init__(self, path: Path, sums: Sequence[int] | None = None) -> None:
        index = path.with_suffix(".idx")
        try:
            raw = index.read_bytes()
            size = path.stat().st_size
        except OSError as error:
            raise DataError(
                f"{error.filename}: expected {path.name} and {index.name} side by side, found: {error.strerror}"
            ) from error
        self.dtype, self.lengths, self._first_bytes = _read_index(raw, index)
        """Type of the ids, and (documents,) tokens of each."""
        end = int(self.lengths.sum()) * self.dtype.itemsize
        if size != end:
            raise DataError(f"{path}: expected {end} bytes, as {index.name} says, found {size}; build it again")
        self._ids = np.memmap(path, dtype=self.dtype, mode="r") if size else np.empty(0, dtype=self.dtype)
        self._path = path
        self._sums = sums
        if sums is not None and len(sums) != -(-size // BLOCK_BYTES):
            raise DataError(f"{path}: expected {len(sums)} blocks of 1 MiB, found {size} bytes; build it again")
        self._is_seen = np.zeros(0 if sums is None else len(sums), dtype=bool)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:  # type: ignore[override]  # no slices
        """Return the ids of a document: (tokens,), read when they are used."""
        return self.slice(document, 0, int(self.lengths[document]))

    def slice(self, document: int, start: int, end: int) -> np.ndarray:
        """Return some ids of a document.

        Args:
            document: Its number.
            start: First token.
            end: The one after the last; what is beyond the document is left out.
        """
        first = int(self._first_bytes[document]) // self.dtype.itemsize
        begin, stop = first + start, first + min(end, int(self.lengths[document]))
        if self._sums is not None and stop > begin:
            self._check(begin * self.dtype.itemsize // BLOCK_BYTES, (stop * self.dtype.itemsize - 1) // BLOCK_BYTES)
        return self._ids[begin:stop]

    def _check(self, first: int, last: int) -> None:
        """Compare blocks that were not read before with their sums."""
        assert self._sums is not None
        width = BLOCK_BYTES // self.dtype.itemsize
        for block in range(first, last + 1):
            if self._is_seen[block]:
                continue
            found = zlib.crc32(self._ids[block * width : (block + 1) * width].tobytes())
            if found != self._sums[block]:
                raise DataError(
                    f"{self._path}: the bytes from {block * BLOCK_BYTES} on: expected CRC-32 {self._sums[block]:08x}, found "
                    f"{found:08x}; the file was damaged, build it again"
                )
            self._is_seen[block] = True


def _read_index(raw: bytes, path: Path) -> tuple[np.dtype[np.generic], np.ndarray, np.ndarray]:
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise DataError(f"{path}: expected an index that begins with {MAGIC!r}, found {raw[:9]!r}")
    _, version, code, count, marks = HEADER.unpack_from(raw)
    if version != 1 or code not in CODES:
        raise DataError(f"{path}: expected version 1 and ids of a type {sorted(CODES)}, found version {version} and type {code}")
    needed = HEADER.size + count * 12 + marks * 8
    if len(raw) < needed:
        raise DataError(f"{path}: expected {needed} bytes for {count} documents, found {len(raw)}; the file is cut off")
    dtype = np.dtype(CODES[code])
    lengths = np.frombuffer(raw, dtype="<i4", count=count, offset=HEADER.size)
    starts = np.frombuffer(raw, dtype="<i8", count=count, offset=HEADER.size + count * 4)
    expected = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * dtype.itemsize if count else starts
    if (lengths < 0).any() or not np.array_equal(starts, expected):
        wrong = int(np.argmax((lengths < 0) | (starts != expected)))
        raise DataError(f"{path}: document {wrong + 1}: expected to begin at byte {expected[wrong]}, found {starts[wrong]}")
    return dtype, lengths, starts
