"""Ctrl-C that is not lost: libraries swallow KeyboardInterrupt while they are imported, or make another error of it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["CtrlC"]


class CtrlC:
    """Raises KeyboardInterrupt at each Ctrl-C while the block runs, and remembers that there was one.

    Nothing is changed outside the main thread, where Python allows no handlers, and where Ctrl-C is ignored (nohup).

    Attributes:
        was_pressed: Whether there was one, whatever became of the KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.was_pressed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if threading.current_thread() is threading.main_thread() and not is_ignored:
            self._before = signal.signal(signal.SIGINT, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.was_pressed = True
        raise KeyboardInterrupt
