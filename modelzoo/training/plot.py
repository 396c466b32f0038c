"""The picture of a run: training loss, and the metric of its evaluations."""

import importlib.util
from pathlib import Path

from modelzoo.training.records import read_records

__all__ = ["plot_run"]


def plot_run(metrics: Path, target: Path, metric: str) -> str:
    """Draw `metrics.jsonl` into a PNG file, if matplotlib is installed, and return what was done as a note.

    Args:
        metrics: The metrics file.
        target: The picture.
        metric: Which evaluation metric is drawn beside the loss.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return "no loss.png: matplotlib is not installed (pip install 'modelzoo-hub[plot]')"
    from matplotlib.figure import Figure

    records = list(read_records(metrics))
    steps = [(record["step"], record["loss"]) for record in records if "loss" in record]
    evaluations = [(record["step"], record["evaluation"][metric]) for record in records if "evaluation" in record]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*steps, strict=True) if steps else ([], []), color="tab:blue", linewidth=0.8, label="training loss")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.set_ylim(bottom=0)
    if evaluations:
        other = axes.twinx()
        other.plot(*zip(*evaluations, strict=True), color="tab:orange", marker="o", label=metric)
        other.set_ylabel(metric)
    figure.savefig(target, dpi=120)
    return f"picture  {target}"
