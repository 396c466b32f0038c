"""What a command says of a run: its log lines while it goes, and where everything is when it ends."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from modelzoo.cli.console import columns, is_first_process, say

if TYPE_CHECKING:
    from modelzoo.training import RunResult

__all__ = ["model_folder", "quiet_transformers", "say_result", "show_log"]


class _SayHandler(logging.Handler):
    """Writes the library's log lines as plain lines of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a warning says that it is one."""
        text = record.getMessage()
        say(text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}")


def show_log() -> None:
    """Let the first process show what modelzoo logs from INFO on; other libraries keep their own settings."""
    logger = logging.getLogger("modelzoo")
    if is_first_process() and not any(isinstance(handler, _SayHandler) for handler in logger.handlers):
        logger.addHandler(_SayHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def quiet_transformers() -> None:
    """Keep transformers' progress bars out of the command's output."""
    import transformers

    transformers.utils.logging.disable_progress_bar()


def model_folder(run_or_model: str) -> str:
    """Return the model's folder for a run's folder, and anything else (a model's folder, a hub id) as it is."""
    final = Path(run_or_model) / "final"
    return str(final) if (final / "config.json").is_file() else run_or_model


def say_result(result: "RunResult") -> None:
    """Say how a run ended, where its result is, and what can be done next."""
    best = "" if result.best_metric is None else f"best {result.best_metric:.4f} at step {result.best_step}"
    rows = [
        ["final", str(result.final)],
        ["predict", f"modelzoo predict {result.folder} --text TEXT"],
        ["verify", f"modelzoo verify {result.final}"],
    ]
    say(f"\ndone     {best}".rstrip())
    say(columns(rows, indent=0, gap=2))
