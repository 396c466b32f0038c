"""Two runs beside each other: settings that differ, data, and numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from modelzoo.report.run_files import RunFiles, numbers
from modelzoo.report.summary import summarize

__all__ = ["Comparison", "compare_runs", "flat"]

FREE = ("output.", "description", "recipe")
"""Settings that name places and runs."""
DIFFERENT_ANYWAY = ("threads", "memory", "cores")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two runs; each value is a pair, first run first, None where a run has none."""

    names: tuple[str, str]
    settings: dict[str, tuple[Any, Any]]
    """Only those that differ."""
    metrics: dict[str, tuple[Any, Any]]
    """All, of the best step of each run and of the whole run."""
    data: dict[str, bool | None]
    """Whether the model saw the same, by split; None where a run has no such split."""
    environment: dict[str, tuple[Any, Any]]
    """Only what differs."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def compare_runs(first: RunFiles, second: RunFiles) -> Comparison:
    """Return what differs between two runs."""
    return Comparison(
        names=(first.name, second.name),
        settings=_differing(flat(first.settings), flat(second.settings)),
        metrics=_paired(_numbers(first), _numbers(second)),
        data={split: _same_data(first, second, split) for split in {**first.data, **second.data}},
        environment=_differing(flat(first.environment), flat(second.environment)),
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


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = _paired(first, second)
    return {
        key: pair for key, pair in pairs.items() if pair[0] != pair[1] and not key.startswith(FREE) and key not in DIFFERENT_ANYWAY
    }


def _paired(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (first.get(key), second.get(key)) for key in {**first, **second}}


def _same_data(first: RunFiles, second: RunFiles, split: str) -> bool | None:
    prints = [dict(run.data.get(split) or {}).get("fingerprint") for run in (first, second)]
    return None if None in prints else prints[0] == prints[1]


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
