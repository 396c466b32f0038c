"""Threads that read, update and write while the model computes; an error of theirs is raised at the next call, never lost."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.pieces import Scratch
from modelzoo.runtime.tiers.unit import CPU

__all__ = ["WORKERS", "Worker"]

WORKERS = 2
"""One reads ahead while another updates. Each has a scratch of its own."""
LANES = 4
"""Reads and writes of pieces that are under way at a time: two moments of one piece, and of the next."""


class Worker:
    """The threads of one model's tiers.

    Args:
        threads: How many; one works in the order in which it was asked.
        link: To the device that computes.
    """

    def __init__(self, threads: int = WORKERS, link: Link = CPU) -> None:
        self._link = link
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="modelzoo-tiers")
        self.lane = ThreadPoolExecutor(LANES, thread_name_prefix="modelzoo-lane")
        """Threads that only read and write, for the others."""
        self._own = threading.local()
        self._scratches: list[Scratch] = []
        self._error: BaseException | None = None
        self.waited_s = 0.0
        """Seconds that callers have waited for work that was not done when they needed it."""
        self.waits = 0

    def submit(self, work: Callable[..., None], *args: Any) -> Future[None]:
        """Let a thread do some work.

        Raises:
            Exception: The error of any work before.
        """
        self.check()
        return self._threads.submit(self._do, work, args)

    def wait(self, future: Future[None]) -> None:
        """Wait until some work is done.

        Raises:
            Exception: Its error, or that of any work before.
        """
        if not future.done():
            start = time.perf_counter()
            future.exception()
            self.waited_s += time.perf_counter() - start
            self.waits += 1
        self.check()
        future.result()

    def check(self) -> None:
        """Raise the first error of any work that was done.

        Raises:
            Exception: That error, as it was.
        """
        if self._error is not None:
            raise self._error

    @property
    def scratch(self) -> Scratch:
        """Buffers of the thread that asks."""
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch(self._link)
            self._scratches.append(self._own.scratch)
        own: Scratch = self._own.scratch
        return own

    @property
    def size_bytes(self) -> int:
        """Memory of all scratches."""
        return sum(scratch.size_bytes for scratch in self._scratches)

    def close(self) -> None:
        """Let what runs end and drop what waits."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.lane.shutdown(wait=True, cancel_futures=True)

    def _do(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._error is not None:
            return  # what comes after an error would work on values that are not there
        try:
            work(*args)
        except BaseException as error:
            self._error = self._error or error
            raise
