"""What a command says of a run: its log lines while it goes, and where everything is when it ends."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modelzoo.cli.console import Ended, columns, is_first_process, say

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
    """Say how a run ended, where its result is, and what can be done next.

    Raises:
        Ended: The run was stopped and can be resumed; 75 after SIGTERM, 130 after Ctrl-C.
    """
    if result.final is None:
        say(f"\nstopped  at step {result.step} of {result.total_steps}; everything is saved")
        say(f"go on    {result.resume_command}")
        raise Ended(result.exit_code)
    say(f"\ndone     {result.step} steps in {_time(result.seconds)}")
    rows = [[split, text] for split, text in _scores(result)]
    rows += [
        ["final", str(result.final)],
        ["predict", f"modelzoo predict {result.folder} --text TEXT"],
        ["verify", f"modelzoo verify {result.folder}"],
    ]
    say(columns(rows, indent=0, gap=2))


def _scores(result: "RunResult") -> Iterator[tuple[str, str]]:
    """Yield the scores of the kept weights, the majority baseline beside the accuracy."""
    if result.best_metric is not None:
        baseline = "" if result.majority is None else f"; always the commonest label: accuracy {result.majority:.4f}"
        yield "best", f"{result.metric} {result.best_metric:.4f} at step {result.best_step}{baseline}"
    if result.test:
        yield "test", "  ".join(f"{name} {value:.4f}" for name, value in result.test.items())


def _time(seconds: float) -> str:
    """Return a duration as 0:42 or 2:05:07."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
