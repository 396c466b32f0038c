"""Runs beside each other: settings that differ, data, and numbers, with their spread where nothing but the seed differs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from modelzoo.report.run_files import RunFiles, numbers
from modelzoo.report.summary import summarize

__all__ = ["Comparison", "compare_runs", "flat"]

FREE = ("output.", "description", "recipe")
"""Settings that name places and runs."""
DIFFERENT_ANYWAY = ("threads", "memory", "cores")
SEED = "train.seed"
COUNTS = ("step", "best step")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between runs; each value has one entry a run, in their order, None where a run has none."""

    names: tuple[str, ...]
    settings: dict[str, tuple[Any, ...]]
    """Only those that differ."""
    metrics: dict[str, tuple[Any, ...]]
    """All, of the best step of each run and of the whole run."""
    data: dict[str, bool | None]
    """Whether the model saw the same, by split; None where a run has no such split."""
    environment: dict[str, tuple[Any, ...]]
    """Only what differs."""
    spread: dict[str, tuple[float, float]]
    """Mean and standard deviation (of a sample) of each figure, where the runs differ in their seed alone."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def compare_runs(runs: Sequence[RunFiles]) -> Comparison:
    """Return what differs between runs.

    Args:
        runs: Two or more.
    """
    settings = _differing([flat(run.settings) for run in runs])
    metrics = _beside([_numbers(run) for run in runs])
    data = {split: _same_data(runs, split) for run in runs for split in run.data}
    return Comparison(
        names=tuple(run.name for run in runs),
        settings=settings,
        metrics=metrics,
        data=data,
        environment=_differing([flat(run.environment) for run in runs]),
        spread=_spread(metrics) if set(settings) == {SEED} and all(data.values()) else {},
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys; an empty mapping has none."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _differing(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {
        key: values
        for key, values in _beside(of_runs).items()
        if any(value != values[0] for value in values) and not key.startswith(FREE) and key not in DIFFERENT_ANYWAY
    }


def _beside(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    keys = dict.fromkeys(key for values in of_runs for key in values)
    return {key: tuple(values.get(key) for values in of_runs) for key in keys}


def _spread(metrics: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[float, float]]:
    return {
        key: (statistics.mean(values), statistics.stdev(values))
        for key, values in metrics.items()
        if key not in COUNTS and all(isinstance(value, int | float) for value in values)
    }


def _same_data(runs: Sequence[RunFiles], split: str) -> bool | None:
    prints = [dict(run.data.get(split) or {}).get("fingerprint") for run in runs]
    return None if None in prints else len(set(prints)) == 1


def _numbers(run: RunFiles) -> dict[str, Any]:
    """Return the figures of a run: metrics of its best step, of the test data, its steps, time, speed and memory."""
    summary = summarize(run)
    plan = numbers(run.measured.get("plan"))
    speed = numbers(run.steps[-1]).get("tokens", 0) / summary.seconds if run.steps and summary.seconds else None
    found: dict[str, Any] = {"state": summary.state, "step": summary.step, "best step": summary.best_step}
    found |= {f"eval {name}": value for name, value in run.evaluation_at(summary.best_step).items()}
    found |= {f"test {name}": value for name, value in numbers(run.result.get("test")).items()}
    found |= {"training loss": summary.loss, "seconds": round(summary.seconds, 1)}
    found |= {"tokens/s": None if speed is None else round(speed), "peak bytes": plan.get("measured_bytes")}
    return found
