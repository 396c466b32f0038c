"""`modelzoo runs`, `plot` and `compare`: what became of runs, from their folders alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelzoo.cli.console import columns, say, say_json
from modelzoo.errors import InputError, SaveError
from modelzoo.quantities import counted

if TYPE_CHECKING:
    from modelzoo.report import RunFiles

__all__ = ["compare", "plot", "runs"]

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, with the folders below it.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder: state, steps, best metric, time and date.

    A run is finished, stopped (`modelzoo resume RUN` goes on), running, or failed (its log.txt says why).
    """
    from modelzoo.quantities import time_text
    from modelzoo.report import find_runs, summarize

    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder with runs in it, found {'a file' if folder.exists() else 'nothing'}")
    found = sorted((summarize(run) for run in find_runs(folder)), key=lambda summary: summary.started)
    if as_json:
        say_json([summary.to_json() for summary in found])
        return
    if not found:
        say(f"no run in {folder}; start one with: modelzoo train RECIPE")
        return
    rows = [["run", "model", "state", "step", "best", "loss", "time", "started (UTC)"]]
    for summary in found:
        steps = f"{summary.step}/{summary.total_steps}" if summary.total_steps else str(summary.step)
        best = "" if summary.best is None else f"{summary.metric} {summary.best:.4f}"
        loss = "" if summary.loss is None else f"{summary.loss:.4f}"
        model = summary.model if len(summary.model) <= 32 else f"...{summary.model[-29:]}"
        started = summary.started[:16].replace("T", " ")
        rows.append([summary.folder, model, summary.state, steps, best, loss, time_text(summary.seconds), started])
    say(columns(rows))


def plot(
    given: Runs,
    output: Annotated[Path | None, typer.Option(help="New PNG file; by default the curves are drawn here as text.")] = None,
) -> None:
    """Draw the loss and the metric of one or several runs: here as text, or with --output into one picture.

    modelzoo plot runs/a-001 runs/b-001 --output both.png
    """
    from modelzoo.report import draw_runs, read_run
    from modelzoo.report.picture import has_matplotlib

    found = [read_run(folder) for folder in given]
    if output is None:
        for run in found:
            _say_curves(run)
        if has_matplotlib():
            say(f"\n as a picture: modelzoo plot {' '.join(map(str, given))} --output FILE.png")
        return
    if not has_matplotlib():
        raise InputError("--output needs matplotlib: pip install 'modelzoo-hub[plot]'; without --output curves are drawn as text")
    if output.exists():
        raise InputError(f"{output} exists already and is left as it is; choose another --output")
    try:
        draw_runs(found, output)
    except OSError as error:
        raise SaveError(f"{output} cannot be written: {error.strerror}") from None
    say(f"wrote {output}: {counted(len(found), 'run')}")


def compare(
    given: Runs,
    as_json: AsJson = False,
) -> None:
    """Show runs beside each other: settings that differ, whether the data were the same, and the numbers of all.

    Of runs that differ in their seed alone also the mean and the standard deviation.

    modelzoo compare runs/a-001 runs/a-002 runs/a-003
    """
    from modelzoo.report import read_run
    from modelzoo.report.compare import compare_runs

    if len(given) < 2:
        raise InputError(f"expected two runs or more to compare, found {given[0]}")
    found = compare_runs([read_run(folder) for folder in given])
    if as_json:
        say_json(found.to_json())
        return
    header = ["", *found.names, *(["mean +- deviation"] if found.spread else [])]
    rows = [_metric_row(key, values) for key, values in found.metrics.items()]
    if found.spread:
        rows = [[*row, _spread_text(key, found.spread.get(key))] for row, key in zip(rows, found.metrics, strict=True)]
    say(columns([header, *rows]))
    words = {True: "the same", False: "different", None: "not in all of them"}
    say("\n" + columns([["data", ""], *([split, words[same]] for split, same in found.data.items())]))
    for title, pairs in (("settings that differ", found.settings), ("environment that differs", found.environment)):
        rows = [[key, *map(_shown, pair)] for key, pair in pairs.items()]
        say("\n" + (columns([[title, *found.names], *rows]) if rows else f" {title}: none"))


def _say_curves(run: "RunFiles") -> None:
    """Draw the curves of a run as text."""
    from modelzoo.report import sparkline
    from modelzoo.report.run_files import numbers

    series = {"loss": [record["loss"] for record in run.steps], "lr": [record["lr"] for record in run.steps if "lr" in record]}
    names = dict.fromkeys(name for record in run.evaluations for name in numbers(record["evaluation"]))
    series |= {
        f"eval {name}": [numbers(record["evaluation"]).get(name, float("nan")) for record in run.evaluations] for name in names
    }
    rows = [[name, _first_and_last(values), sparkline(values)] for name, values in series.items() if values]
    say(f"{run.folder}: {counted(run.step, 'step')}")
    say(columns(rows) if rows else " nothing was recorded")


def _first_and_last(values: Sequence[float]) -> str:
    return f"{values[0]:.4g} to {values[-1]:.4g}"


def _spread_text(name: str, spread: tuple[float, float] | None) -> str:
    if spread is None or name.endswith(" bytes"):
        return ""
    mean, deviation = spread
    return f"{mean:.4g} +- {deviation:.2g}"


def _metric_row(name: str, values: tuple[Any, ...]) -> list[str]:
    """Return a figure of runs; bytes as people read them."""
    if not name.endswith(" bytes"):
        return [name, *map(_shown, values)]
    from modelzoo.quantities import readable_size

    return [f"{name.removesuffix(' bytes')} memory", *("" if size is None else readable_size(size) for size in values)]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)
