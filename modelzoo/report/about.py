"""The report's sections on what the run was made of: data, recipe, environment, command."""

from html import escape
from typing import Any

from modelzoo.report.parts import facts, number, preformatted, table
from modelzoo.report.run_files import RunFiles, numbers

__all__ = ["data", "environment", "log", "recipe"]

MOST_LABELS = 20
LOG_LINES = 200
COLUMNS = {
    "rows": "rows",
    "items": "samples",
    "dropped_rows": "left out",
    "truncated_rows": "truncated",
    "cut_tokens": "tokens cut",
    "tokens": "tokens",
    "longest": "longest",
    "num_targets": "targets",
}


def data(run: RunFiles) -> str:
    """Return what became of the rows of each split, their labels, and their fingerprints."""
    reports = {split: _report(values) for split, values in run.data.items()}
    header = ["split", "source", *COLUMNS.values(), "mean length"]
    rows = [
        [
            split,
            str(run.data[split].get("source", "") if isinstance(run.data[split], dict) else ""),
            *(number(report.get(key)) for key in COLUMNS),
            number(_mean_length(report), 1),
        ]
        for split, report in reports.items()
    ]
    text = table(header, rows)
    if counts := {split: found for split, report in reports.items() if (found := numbers(report.get("label_counts")))}:
        names = list(dict.fromkeys(name for labels in counts.values() for name in labels))
        cells = [[name, *(_share(labels, name) for labels in counts.values())] for name in names[:MOST_LABELS]]
        more = f'<p class="sub">and {len(names) - MOST_LABELS} more labels</p>' if len(names) > MOST_LABELS else ""
        text += f"<h3>Labels</h3>{table(['label', *counts], cells)}{more}"
    prints = {split: values.get("fingerprint") for split, values in run.data.items() if isinstance(values, dict)}
    return f"{text}<details><summary>fingerprints of what the model saw</summary>{facts(prints)}</details>"


def recipe(run: RunFiles) -> str:
    """Return the settings of the run, and the recipe as it was written."""
    parts = []
    for name, values in run.settings.items():
        if isinstance(values, dict) and values:
            parts.append(f"<div><h3>{escape(str(name))}</h3>{facts({key: _shown(value) for key, value in values.items()})}</div>")
    written = f"<details><summary>recipe.yaml, as it was written</summary>{preformatted(run.recipe_text)}</details>"
    resolved = f"<details><summary>resolved.yaml, every setting</summary>{preformatted(run.resolved_text)}</details>"
    return f'<div class="cards">{"".join(parts)}</div>{written}{resolved}'


def environment(run: RunFiles) -> str:
    """Return the command, the machine and the versions."""
    values = {key: value for key, value in run.environment.items() if key != "packages"}
    packages = run.environment.get("packages")
    versions = facts(packages) if isinstance(packages, dict) else ""
    command = f"<h3>Command</h3>{preformatted(run.command)}" if run.command else ""
    return f'{command}<div class="pair"><div><h3>Machine</h3>{facts(values)}</div><div><h3>Versions</h3>{versions}</div></div>'


def log(run: RunFiles) -> str:
    """Return the last lines of the log."""
    lines = run.log[-LOG_LINES:]
    return f"<details><summary>the last {len(lines)} lines of log.txt</summary>{preformatted(chr(10).join(lines))}</details>"


def _report(values: Any) -> dict[str, Any]:
    report = values.get("report") if isinstance(values, dict) else None
    return report if isinstance(report, dict) else {}


def _mean_length(report: dict[str, Any]) -> float | None:
    found = numbers(report)
    return found["tokens"] / found["items"] if found.get("items") and found.get("tokens") else None


def _share(labels: dict[str, float], name: str) -> str:
    total = sum(labels.values()) or 1
    return f"{labels.get(name, 0):,} ({labels.get(name, 0) / total:.1%})"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items()) or "{}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
