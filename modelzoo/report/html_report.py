"""`report.html`: all that is known of a run on one page that needs neither network nor script."""

import dataclasses
import os
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path

from modelzoo.quantities import time_text
from modelzoo.report import about, sections
from modelzoo.report.findings import Finding, findings
from modelzoo.report.parts import number, size, tile
from modelzoo.report.run_files import RunFiles, numbers, read_run
from modelzoo.report.summary import RunSummary, summarize
from modelzoo.report.timeline import timeline

__all__ = ["REPORT_FILE", "report_html", "write_report"]

REPORT_FILE = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded and no script may run, whatever the files of a run hold."""

SECTIONS: tuple[tuple[str, str, Callable[[RunFiles], str]], ...] = (
    ("curves", "Curves", sections.curves),
    ("evaluations", "Evaluations", sections.evaluations),
    ("time", "Time", sections.time),
    ("memory", "Memory", sections.memory),
    ("tiers", "Memory over time", timeline),
    ("data", "Data", about.data),
    ("recipe", "Recipe", about.recipe),
    ("environment", "Environment and command", about.environment),
    ("log", "Log", about.log),
)


def write_report(folder: Path, *, is_ending: bool = False) -> Path:
    """Write the page of a run from its files, in place of an earlier one, and return its path.

    Args:
        folder: Of the run, finished or not.
        is_ending: Whether this process works on the run, which is at its end.

    Raises:
        InputError: It is not the folder of a run.
        OSError: The page cannot be written.
    """
    target = folder / REPORT_FILE
    text = report_html(dataclasses.replace(read_run(folder), is_ending=is_ending))
    temporary = folder / f".tmp-{REPORT_FILE}"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, target)
    return target


def report_html(run: RunFiles) -> str:
    """Return the page of a run."""
    summary = summarize(run)
    made = [(key, title, text) for key, title, build in SECTIONS if (text := build(run))]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in made)
    body = "".join(f'<section id="{key}"><h2>{title}</h2>{text}</section>' for key, title, text in made)
    style = files("modelzoo.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(summary.name)} · modelzoo</title><style>{style}</style></head><body><main>"
        f"{_heading(run, summary)}<nav>{links}</nav>{_tiles(run, summary)}{_findings(findings(run))}{body}</main></body></html>\n"
    )


def _heading(run: RunFiles, summary: RunSummary) -> str:
    task = run.section("model").get("task", "")
    started = summary.started.replace("T", " ").replace("+00:00", " UTC")
    line = f"{summary.model} for {task} · recipe {summary.recipe} · started {started}"
    description = str(run.settings.get("description") or "")
    more = f'<p class="sub">{escape(description)}</p>' if description else ""
    state = f'<span class="state {summary.state}">{summary.state}</span>'
    return f'<header><h1>{escape(summary.name)} {state}</h1><p class="sub">{escape(line)}</p>{more}</header>'


def _tiles(run: RunFiles, summary: RunSummary) -> str:
    total = f" of {summary.total_steps:,}" if summary.total_steps else ""
    found = [tile(f"{summary.step:,}{total}", "steps"), tile(time_text(summary.seconds), "in the loop")]
    if summary.best is not None:
        found.insert(0, tile(number(summary.best), f"best {summary.metric}, step {summary.best_step}"))
    if summary.loss is not None:
        found.append(tile(number(summary.loss), "training loss of the last step"))
    if run.steps and summary.seconds:
        found.append(tile(f"{numbers(run.steps[-1]).get('tokens', 0) / summary.seconds:,.0f}", "tokens a second, all in all"))
    peak = numbers(run.measured.get("plan")).get("measured_bytes")
    if peak:
        found.append(tile(size(peak), "peak memory of rank 0"))
    return f'<div class="tiles">{"".join(found)}</div>'


def _findings(found: list[Finding]) -> str:
    if not found:
        return ""
    lines = "".join(f'<div class="finding {level}">{escape(text)}</div>' for level, text in found)
    return f'<section id="findings"><h2>To know</h2>{lines}</section>'
