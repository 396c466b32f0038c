"""Which progress a run shows when nobody chose one."""

import sys

from modelzoo.training.live import LiveProgress
from modelzoo.training.progress import LineProgress, Progress

__all__ = ["choose_progress"]


def choose_progress(every_s: float) -> Progress:
    """Return a live line where the output is a terminal, log lines otherwise.

    Args:
        every_s: Seconds between two log lines about steps.
    """
    return LiveProgress() if sys.stdout.isatty() else LineProgress(every_s)
