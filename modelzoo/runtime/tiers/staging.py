"""Gradients on their way to the disk: copied into a few buffers and written by threads, so that the backward goes on at once."""

from concurrent.futures import Future

from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.unit import Region
from modelzoo.runtime.tiers.worker import Worker

__all__ = ["PIECE", "STAGING_BUFFERS", "Staging"]

PIECE = 2**20
"""float32 values of a buffer: 4 MiB, which a disk reads and writes at its speed."""
STAGING_BUFFERS = 4


class Staging:
    """Buffers that are used in turn.

    Args:
        worker: Whose threads write.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._buffers: list[Buffer] = []
        self._written: list[Future[None] | None] = []
        self._next = 0

    def put(self, region: Region, start: int, values: Tensor) -> None:
        """Let values be written; they may be changed as soon as this returns.

        Args:
            region: Where to.
            start: First value in it; at a page.
            values: Flat float32.

        Raises:
            SaveError: Something that was put before could not be written.
        """
        for low in range(0, len(values), PIECE):
            piece = values[low : low + PIECE]
            number = self._next = (self._next + 1) % STAGING_BUFFERS
            buffer = self._take(number)
            buffer.values[: len(piece)].copy_(piece)
            self._written[number] = self._worker.submit(region.store, start + low, buffer.values[: len(piece)], buffer)

    def add(self, region: Region, start: int, values: Tensor) -> None:
        """Add what a region holds to values, and keep the sum there.

        Args:
            region: Where.
            start: First value in it; at a page.
            values: Flat float32, changed in place.

        Raises:
            SaveError: Something could not be read or written.
        """
        self.settle()
        buffer = self._take(0)
        for low in range(0, len(values), PIECE):
            piece = values[low : low + PIECE]
            piece += region.load(start + low, start + low + len(piece), buffer)
        self.put(region, start, values)

    def settle(self) -> None:
        """Wait until everything is written.

        Raises:
            SaveError: Something could not be.
        """
        for number, future in enumerate(self._written):
            if future is not None:
                self._worker.wait(future)
                self._written[number] = None

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers."""
        return sum(buffer.size_bytes for buffer in self._buffers)

    def _take(self, number: int) -> Buffer:
        while len(self._buffers) <= number:
            self._buffers.append(Buffer(PIECE))
            self._written.append(None)
        future = self._written[number]
        if future is not None:
            self._worker.wait(future)
            self._written[number] = None
        return self._buffers[number]
