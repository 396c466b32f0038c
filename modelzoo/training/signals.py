"""Being asked to stop: SIGTERM, SIGUSR1 (preemption) and Ctrl-C ask for a save after the step; a second Ctrl-C stops at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Literal, Self

from modelzoo.launch import CtrlC

__all__ = ["StopSignals", "Stopped"]

Stopped = Literal["finished", "interrupted", "preempted"]


class StopSignals:
    """Notes signals while the block runs, and puts back the handlers that were there before.

    Outside the main thread, where Python allows no handlers, nothing is noted. A Ctrl-C of before the block that a library
    swallowed (`CtrlC`) is raised when it begins.

    Attributes:
        wanted: What the run is asked to end as; "finished" while nobody asked.
    """

    def __init__(self) -> None:
        self.wanted: Stopped = "finished"
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if isinstance(before, CtrlC) and before.was_pressed:
                raise KeyboardInterrupt
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGUSR1):
            self.wanted = "preempted"
        elif self.wanted == "interrupted":
            raise KeyboardInterrupt
        else:
            self.wanted = "interrupted"
