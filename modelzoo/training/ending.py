"""What a run leaves behind when it ends, stops or fails: numbers, a picture and a page; none of them can fail the run."""

import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelzoo.data import load_tokenizer
from modelzoo.data.chat import asked_text
from modelzoo.errors import CheckpointError
from modelzoo.report import RunFiles, draw_runs, read_run, write_report
from modelzoo.report.card import write_card
from modelzoo.report.picture import has_matplotlib
from modelzoo.runtime import World, report
from modelzoo.training.forecast import compare
from modelzoo.training.job import Job
from modelzoo.training.result import RunResult
from modelzoo.training.run_directory import RunDirectory

__all__ = ["draw_and_report", "record_ending", "recorded_failure", "write_generation_config"]

log = logging.getLogger(__name__)

CARD_QUESTION = "Hello"
"""What a user says in the prompt that a model card shows."""
GENERATION_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def record_ending(job: Job, world: World, directory: RunDirectory, result: RunResult, *, base: Path | None = None) -> None:
    """Write how a run ended or where it stopped, what rank 0 held and spent its time on, the picture and the page. On rank 0.

    A run that has a result gets a model card beside it, and, where it writes text, generation_config.json.

    Args:
        job: What was trained.
        world: The processes.
        directory: Of the run.
        result: How it ended.
        base: Folder of the model that was fine-tuned.
    """
    found = report(job.model, job.optimizer)
    directory.write_report(found, None if job.plan is None else compare(job.plan, found, world))
    if result.final is not None:
        _complete(result.final, dataclasses.replace(read_run(directory.path), result=result.to_json()), base)
    # the last of the numbers: with it the run counts as ended
    directory.write_result(result.to_json())
    draw_and_report(directory)


def _complete(final: Path, run: RunFiles, base: Path | None) -> None:
    """Write what users of the result expect beside its weights; what goes wrong is a warning."""
    try:
        write_generation_config(final)
        is_chat = dict(run.data.get("train") or {}).get("form") == "chat"
        write_card(run, final, base=base, prompt=asked_text(load_tokenizer(final), CARD_QUESTION) if is_chat else None)
    except Exception as error:  # the result itself is there
        log.warning("%s: the model card could not be written (%s: %s)", final, type(error).__name__, error)


def write_generation_config(folder: Path) -> None:
    """Write generation_config.json beside a model that writes text and has none: the special ids of its config.json.

    Args:
        folder: In Hugging Face's form.
    """
    target = folder / "generation_config.json"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = next(iter(config.get("architectures") or []), "")
    if target.exists() or not name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        return
    ids = {key: config[key] for key in GENERATION_IDS if config.get(key) is not None}
    target.write_text(json.dumps({"_from_model_config": True, **ids}, indent=2) + "\n", encoding="utf-8")


def draw_and_report(directory: RunDirectory) -> None:
    """Draw loss.png, if matplotlib is installed, and write report.html; what goes wrong is a warning.

    Args:
        directory: Of the run.
    """
    try:
        if has_matplotlib():
            draw_runs([read_run(directory.path)], directory.plot)
        write_report(directory.path, is_ending=True)
    except Exception as error:  # the run itself is saved; a page is never worth losing its end
        log.warning("%s: picture and report could not be written (%s: %s)", directory.path, type(error).__name__, error)


@contextmanager
def recorded_failure(directory: RunDirectory, *, is_new: bool) -> Iterator[None]:
    """Write an error that ends the run into its log.txt and its report, and let it go on.

    Args:
        directory: Of the run.
        is_new: False for a run that is resumed: where its checkpoints do not fit what is there now it stays what it was.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, CheckpointError) and not is_new:
            raise
        line = " ".join(str(error).split())
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with directory.log.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} ERROR {type(error).__name__}: {line}\n")
        except OSError:  # a full disk may be what ended the run
            raise error from None
        draw_and_report(directory)
        raise
