"""What a command says of a run: its log lines while it goes, and where everything is when it ends."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from modelzoo.cli.console import Ended, columns, is_first_process, say, say_json

if TYPE_CHECKING:
    from modelzoo.report.run_files import RunFiles
    from modelzoo.training import RunResult

__all__ = ["model_folder", "quiet_transformers", "say_result", "show_log"]


GENERATES = ("causal_lm", "seq2seq_lm")
"""Tasks whose models write text."""


class _SayHandler(logging.Handler):
    """Writes the library's log lines as plain lines of the command."""

    def __init__(self, *, on_stderr: bool) -> None:
        super().__init__()
        self._on_stderr = on_stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a warning says that it is one."""
        text = record.getMessage()
        say(text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}", on_stderr=self._on_stderr)


def show_log(*, on_stderr: bool = False) -> None:
    """Let the first process show what a run says of itself, and the warnings of the rest of modelzoo.

    Args:
        on_stderr: Whether stdout is for a program.
    """
    logger = logging.getLogger("modelzoo")
    if is_first_process() and not any(isinstance(handler, _SayHandler) for handler in logger.handlers):
        logger.addHandler(_SayHandler(on_stderr=on_stderr))
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logging.getLogger("modelzoo.training").setLevel(logging.INFO)


def quiet_transformers() -> None:
    """Keep transformers' progress bars out of the command's output, and what torchao says when transformers imports it."""
    import logging

    import transformers

    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)

    transformers.utils.logging.disable_progress_bar()


def model_folder(run_or_model: str) -> str:
    """Return the model's folder for a run's folder, and anything else (a model's folder, a hub id) as it is."""
    final = Path(run_or_model) / "final"
    return str(final) if (final / "config.json").is_file() else run_or_model


def say_result(result: "RunResult", *, as_json: bool = False) -> None:
    """Say where a run's result is and what can be done next; how good it is, the run has said itself.

    Args:
        result: Of the run.
        as_json: Whether all of it is written as JSON.

    Raises:
        Ended: The run was stopped and can be resumed; 75 after SIGTERM, 130 after Ctrl-C.
    """
    if as_json:
        say_json({"folder": result.folder.resolve(), "final": result.final and result.final.resolve(), **result.to_json()})
    if result.final is None:
        raise Ended(result.exit_code)
    if as_json:
        return
    from modelzoo.report import read_run

    run = read_run(result.folder)
    form = "--to merged --verify" if (result.final / "adapter_config.json").is_file() else "--verify"
    form = "--to peft --verify" if run.section("adapter").get("method") in ("prompt", "prefix") else form  # which cannot be merged
    commands = (_use(run, str(result.folder)), f"show {result.folder}", f"export {result.folder} DST {form}")
    rows = [["final", str(result.final)], *(["next", f"modelzoo {command}"] for command in commands)]
    say(columns(rows, indent=0, gap=4))


def _use(run: "RunFiles", folder: str) -> str:
    """Return how the result of a run is asked: with a text, a pair of them, or a file of rows where texts are not enough."""
    task, roles = run.section("model").get("task"), dict(dict(run.data.get("train") or {}).get("columns") or {})
    is_of_images = task == "classification" and not roles
    if run.section("data").get("form") or "choices" in roles or is_of_images:
        return f"predict {folder} --file FILE"
    if task in GENERATES:
        return f"generate {folder} --text TEXT"
    return f"predict {folder} --text TEXT" + (" --pair TEXT" if {"text_b", "context"} & set(roles) else "")
