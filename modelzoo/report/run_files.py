"""What the files of a run's folder say. A file that is missing, torn or foreign counts as empty: old runs are shown too."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from modelzoo.errors import InputError

__all__ = ["RunFiles", "is_run", "numbers", "read_records", "read_run"]

MOST_STEPS = 20_000
MOST_BYTES = 64 * 2**20
"""Of a file that is read whole; metrics.jsonl is read line by line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """A run as its files tell it."""

    folder: Path
    settings: dict[str, Any]
    """resolved.yaml: every setting, section by section."""
    recipe_text: str
    """recipe.yaml as it was written."""
    resolved_text: str
    command: str
    environment: dict[str, Any]
    data: dict[str, Any]
    """Sources, fingerprints and reports by split."""
    result: dict[str, Any]
    """How it ended or where it stopped; empty while it goes and after a failure."""
    measured: dict[str, Any]
    """report.json: layout, time and memory of rank 0, and the plan beside them."""
    steps: list[dict[str, Any]]
    """Of metrics.jsonl: one a step; of a run of many thousand steps only every second, fourth, ..., the last and skipped ones."""
    evaluations: list[dict[str, Any]]
    """Of metrics.jsonl: one an evaluation, with the metrics in `evaluation`."""
    log: list[str]
    timeline: list[dict[str, Any]]
    """Of timeline.jsonl: resident bytes by kind and tier over the first steps; empty for a run without tiers."""
    is_ending: bool = False
    """Whether the process that works on the run reads it, at its end: its own lock then says nothing."""

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def metric(self) -> str:
        """The metric that decided about the best weights."""
        wanted = self.section("evaluation").get("metric") or self.result.get("metric")
        first = self.evaluations[0]["evaluation"] if self.evaluations else {}
        return str(wanted or next(iter(first), "loss"))

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None where no file says it."""
        found = self.result.get("total_steps")
        return found if isinstance(found, int) else None

    @property
    def step(self) -> int:
        """Steps taken."""
        found = self.result.get("step")
        last = int(self.steps[-1]["step"]) if self.steps else 0
        return max(found if isinstance(found, int) else 0, last)

    @property
    def seconds(self) -> float:
        """Time in the loop."""
        return max((numbers(record).get("seconds", 0.0) for record in (*self.steps[-1:], *self.evaluations[-1:])), default=0.0)

    def evaluation_at(self, step: int | None) -> dict[str, float]:
        """Return the metrics of the evaluation after a step; none where there was no evaluation then."""
        return next((numbers(record["evaluation"]) for record in self.evaluations if record["step"] == step), {})

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the settings, empty where there is none."""
        found = self.settings.get(name)
        return found if isinstance(found, dict) else {}


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return (folder / "resolved.yaml").is_file()


def read_run(folder: Path) -> RunFiles:
    """Return what a run's files say.

    Args:
        folder: Of the run.

    Raises:
        InputError: It is not the folder of a run.
    """
    if not is_run(folder):
        found = "a folder without it" if folder.is_dir() else "a file" if folder.exists() else "nothing there"
        raise InputError(f"{folder}: expected the folder of a run, with resolved.yaml; found {found}")
    steps, evaluations = _metrics(folder / "metrics.jsonl")
    resolved = _text(folder / "resolved.yaml")
    return RunFiles(
        folder=folder,
        settings=_mapping(resolved, yaml.safe_load),
        recipe_text=_text(folder / "recipe.yaml"),
        resolved_text=resolved,
        command=_text(folder / "command.txt").strip(),
        environment=_json(folder / "env.json"),
        data=_json(folder / "data.json"),
        result=_json(folder / "result.json"),
        measured=_json(folder / "report.json"),
        steps=steps,
        evaluations=evaluations,
        log=_text(folder / "log.txt").splitlines(),
        timeline=list(_lines(folder / "timeline.jsonl", key=None)),
    )


def numbers(values: Any) -> dict[str, float]:
    """Return the entries of a mapping that are finite numbers; none of anything else."""
    if not isinstance(values, Mapping):
        return {}
    return {
        str(name): value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Give the lines of a metrics file; a last line that was cut short is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def _lines(path: Path, *, key: str | None = "step") -> Iterator[dict[str, Any]]:
    """Give the objects of a file of JSON lines that have an integer under `key`; nothing where there is no such file."""
    if not path.is_file():
        return
    try:
        for record in read_records(path):
            if isinstance(record, dict) and (key is None or isinstance(record.get(key), int)):
                yield record
    except (OSError, UnicodeDecodeError):
        return


def _metrics(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lines of steps, of a long run evenly thinned out, and those of evaluations."""
    steps: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    last, stride, seen = None, 1, 0
    for record in _lines(path):
        if isinstance(record.get("evaluation"), dict):
            evaluations.append(record)
        elif "loss" in record:
            if seen % stride == 0 or "skipped" in record:
                steps.append(record)
            last, seen = record, seen + 1
            if len(steps) > MOST_STEPS:
                stride *= 2
                steps = [kept for index, kept in enumerate(steps) if index % 2 == 0 or "skipped" in kept]
    return [*steps, *([last] if last is not None and steps[-1] is not last else [])], evaluations


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size <= MOST_BYTES else ""
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    return _mapping(_text(path), json.loads)


def _mapping(text: str, parse: Any) -> dict[str, Any]:
    try:
        found = parse(text) if text else {}
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return dict(found) if isinstance(found, Mapping) else {}
