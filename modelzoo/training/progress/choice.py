"""Which progress a run shows when nobody chose one."""

import sys

from modelzoo.training.progress.live import LiveProgress
from modelzoo.training.progress.notebook import NotebookProgress, is_notebook
from modelzoo.training.progress.progress import LineProgress, Progress

__all__ = ["choose_progress"]


def choose_progress(every_s: float) -> Progress:
    """Return a table in a notebook, a live line where the output is a terminal, log lines otherwise.

    Args:
        every_s: Seconds between two log lines about steps.
    """
    if is_notebook():
        return NotebookProgress()
    return LiveProgress() if sys.stdout.isatty() else LineProgress(every_s)
