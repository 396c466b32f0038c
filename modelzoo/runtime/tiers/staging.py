"""Gradients on their way to the disk: copied into a few buffers and written by threads, so that the backward goes on at once."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.pieces import UPDATE_PIECE
from modelzoo.runtime.tiers.unit import CPU, MemoryRegion, Region
from modelzoo.runtime.tiers.worker import Worker

__all__ = ["PIECE", "STAGING_BUFFERS", "Staging"]

PIECE = 2**20
"""float32 values of a buffer: 4 MiB, which a disk reads and writes at its speed."""
STAGING_BUFFERS = 4


class Staging:
    """Buffers that are used in turn; gradients of an accelerator are copied by the threads, and wait in its memory until then.

    Args:
        worker: Whose threads write.
        link: To the device that computes.
        room: Bytes of gradients that may wait on an accelerator; one that is larger waits alone.
    """

    def __init__(self, worker: Worker, link: Link = CPU, *, room: int = 0) -> None:
        self._worker, self._link, self._room = worker, link, room
        self._buffers: list[Buffer] = []
        self._written: list[Future[None] | None] = []
        self._next = 0
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def send(self, values: Tensor, work: Callable[[Tensor], None]) -> Future[None]:
        """Let a thread do some work on values on an accelerator, as soon as they are computed.

        Args:
            values: Kept until it is done.
            work: Takes them, in a thread, on a stream that has waited for them.

        Raises:
            SaveError: Some work before failed.
        """
        while self._waiting and sum(size for size, _ in self._waiting) + values.nbytes > self._room:
            self._worker.wait(self._waiting.popleft()[1])
        future = self._worker.submit(self._beside, values, work, self._link.mark())
        self._waiting.append((values.nbytes, future))
        return future

    def _beside(self, values: Tensor, work: Callable[[Tensor], None], after: Any) -> None:
        with self._link.beside(after):
            work(values)

    def carry(self, region: Region, start: int, values: Tensor, *, adds: bool) -> None:
        """Bring values from an accelerator into a region. In a thread.

        Args:
            region: Where to.
            start: First value in it; at a page.
            values: Flat float32; if they are added to, changed in place.
            adds: Whether what the region holds is added to them first.
        """
        buffer = self._worker.scratch.piece(0, "gradients")
        for low in range(0, len(values), UPDATE_PIECE):
            piece = values[low : low + UPDATE_PIECE]
            if adds:
                held = region.load(start + low, start + low + len(piece), buffer)
                there = torch.empty_like(piece)
                self._link.to_device(there, held)
                piece += there
            own = region.values[start + low : start + low + len(piece)] if isinstance(region, MemoryRegion) else None
            into = buffer.values[: len(piece)] if own is None else own
            self._link.to_host(into, piece)
            region.store(start + low, into, buffer)

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
        while self._waiting:
            self._worker.wait(self._waiting.popleft()[1])
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
