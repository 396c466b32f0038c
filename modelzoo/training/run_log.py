"""Where the log lines of a run go: always into its log.txt, and to stderr where the program shows no log of its own."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["run_log"]


class _StderrHandler(logging.Handler):
    """Writes plain lines to what stderr is at that moment, so that a live line can move out of the way."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        sys.stderr.write(self.format(record) + "\n")


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Write what a run says of itself, and modelzoo's warnings, to a file while the block runs; settings are put back at its end.

    Args:
        path: The file; lines are appended.
    """
    logger = logging.getLogger("modelzoo")
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handlers[0].setFormatter(formatter)
    if not logger.hasHandlers():
        handlers.append(_StderrHandler())
    training = logging.getLogger("modelzoo.training")
    level = training.level
    if not training.isEnabledFor(logging.INFO):
        training.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        training.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
