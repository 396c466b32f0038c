"""Runs as a picture: training loss, and the metric of their evaluations."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from modelzoo.report.run_files import RunFiles
from modelzoo.report.svg import smoothed

__all__ = ["draw_runs", "has_matplotlib"]


def has_matplotlib() -> bool:
    """Return whether pictures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_runs(runs: Sequence[RunFiles], target: Path) -> None:
    """Draw one or several runs into a PNG file: the loss above, the evaluations' metric below it where there is one.

    Args:
        runs: At least one; each has a color of its own.
        target: The picture.
    """
    from matplotlib.figure import Figure

    has_metric = any(run.evaluations and run.metric != "loss" for run in runs)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots(2 if has_metric else 1, 1, squeeze=False)[:, 0]
    for number, run in enumerate(runs):
        color = f"C{number % 10}"
        name = run.name if len(runs) > 1 else "training loss"
        steps = [(record["step"], record["loss"]) for record in run.steps]
        if len(steps) > 1:
            axes[0].plot(*zip(*steps, strict=True), color=color, linewidth=0.6, alpha=0.35)
        if steps:
            axes[0].plot(*zip(*smoothed(steps), strict=True), color=color, linewidth=1.6, label=name)
        _evaluations(axes[0], run, "loss", "--o", color, f"{run.name}, evaluated" if len(runs) > 1 else "evaluated loss")
        if has_metric and run.metric != "loss":
            _evaluations(axes[1], run, run.metric, "-o", color, run.name if len(runs) > 1 else run.metric)
    axes[0].set(ylabel="loss", xlabel="" if has_metric else "step")
    axes[0].set_ylim(bottom=0)
    if has_metric:
        axes[1].set(ylabel=" / ".join(dict.fromkeys(run.metric for run in runs if run.metric != "loss")), xlabel="step")
    for one in axes:
        one.grid(alpha=0.25)
        if one.get_legend_handles_labels()[0]:
            one.legend(frameon=False)
    figure.savefig(target, dpi=120, format="png")


def _evaluations(axes: object, run: RunFiles, metric: str, form: str, color: str, label: str) -> None:
    points = [(record["step"], record["evaluation"][metric]) for record in run.evaluations if metric in record["evaluation"]]
    if points:
        axes.plot(*zip(*points, strict=True), form, color=color, markersize=4, linewidth=1.2, label=label)  # type: ignore[attr-defined]  # matplotlib's types are not read
