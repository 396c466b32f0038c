"""What a run leaves behind when it ends, stops or fails: numbers, a picture and a page; none of them can fail the run."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from modelzoo.report import draw_runs, read_run, write_report
from modelzoo.report.picture import has_matplotlib
from modelzoo.runtime import World, report
from modelzoo.training.forecast import compare
from modelzoo.training.job import Job
from modelzoo.training.result import RunResult
from modelzoo.training.run_directory import RunDirectory

__all__ = ["draw_and_report", "record_ending", "recorded_failure"]

log = logging.getLogger(__name__)


def record_ending(job: Job, world: World, directory: RunDirectory, result: RunResult) -> None:
    """Write how a run ended or where it stopped, what rank 0 held and spent its time on, the picture and the page. On rank 0.

    Args:
        job: What was trained.
        world: The processes.
        directory: Of the run.
        result: How it ended.
    """
    found = report(job.model, job.optimizer)
    directory.write_report(found, None if job.plan is None else compare(job.plan, found, world))
    # the last of the numbers: with it the run counts as ended
    directory.write_result(result.to_json())
    draw_and_report(directory)


def draw_and_report(directory: RunDirectory) -> None:
    """Draw loss.png, if matplotlib is installed, and write report.html; what goes wrong is a warning.

    Args:
        directory: Of the run.
    """
    try:
        if has_matplotlib():
            draw_runs([read_run(directory.path)], directory.plot)
        write_report(directory.path)
    except Exception as error:  # the run itself is saved; a page is never worth losing its end
        log.warning("%s: picture and report could not be written (%s: %s)", directory.path, type(error).__name__, error)


@contextmanager
def recorded_failure(directory: RunDirectory) -> Iterator[None]:
    """Write an error that ends the run into its log.txt and its report, and let it go on.

    Args:
        directory: Of the run.
    """
    try:
        yield
    except BaseException as error:
        line = " ".join(str(error).split())
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with directory.log.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} ERROR {type(error).__name__}: {line}\n")
        except OSError:  # a full disk may be what ended the run
            raise error from None
        draw_and_report(directory)
        raise
