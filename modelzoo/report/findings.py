"""What one should know of a run: losses of data, results that mean little, plans that were far off. From its files alone."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from modelzoo.report.run_files import RunFiles, numbers
from modelzoo.report.summary import state_of, summarize

__all__ = ["Finding", "data_findings", "findings"]

TRUNCATED_SHARE = 0.01
ONE_LABEL_SHARE = 0.9
WAIT_SHARE = 0.1
PLAN_ERROR = 0.25
OVERFIT = 1.1
"""Last evaluation loss over the lowest one."""


class Finding(NamedTuple):
    """One thing to know."""

    level: Literal["note", "problem"]
    text: str


def findings(run: RunFiles) -> list[Finding]:
    """Return what one should know of a run, problems first."""
    found = [*_ending(run), *data_findings(run.data, run.section("data").get("max_length")), *_result(run), *_pace(run)]
    return sorted(found, key=lambda finding: finding.level != "problem")


def _ending(run: RunFiles) -> Iterator[Finding]:
    if state_of(run) == "failed":
        last = next((line for line in reversed(run.log) if " ERROR " in line), "its process ended without a word; see log.txt")
        yield Finding("problem", f"the run did not reach its end: {last}")
    for line in dict.fromkeys(line.partition(" WARNING ")[2] for line in run.log if " WARNING " in line):
        yield Finding("note", line)
    skipped = sum("skipped" in record for record in run.steps)
    if skipped:
        yield Finding("note", f"{skipped} of {len(run.steps)} steps were skipped, as their float16 gradients overflowed")


def data_findings(data: Mapping[str, Any], max_length: int | None) -> Iterator[Finding]:
    """Give what one should know of the rows before they are trained on.

    Args:
        data: What data.json holds: source, fingerprint and report by split.
        max_length: Tokens of the longest item that is allowed.
    """
    for split, values in data.items():
        report = values.get("report") if isinstance(values, dict) else None
        counts = numbers(report.get("label_counts")) if isinstance(report, dict) else {}
        found = numbers(report)
        rows, cut, dropped, lost = (found.get(name, 0) for name in ("rows", "truncated_rows", "dropped_rows", "lost_targets"))
        if rows and cut / rows > TRUNCATED_SHARE:
            is_below = max_length and 0 < found.get("longest", 0) < max_length  # the model takes less, or a target was cut
            limit = f", to {found['longest']:,} tokens at most" if is_below else f" to data.max_length={max_length} tokens"
            yield Finding("note", f"{split}: {cut:,} of {rows:,} rows ({cut / rows:.1%}) were cut{limit}")
        if dropped:
            yield Finding("note", f"{split}: {dropped:,} of {rows:,} rows had no target and were left out")
        if lost:
            yield Finding("note", f"{split}: {lost:,} targets were removed by truncation or the tokenizer")
        total = sum(counts.values())
        if total and max(counts.values()) / total > ONE_LABEL_SHARE:
            name = max(counts, key=lambda key: counts[key])
            yield Finding(
                "note", f"{split}: {counts[name] / total:.1%} of the labels are {name!r}; accuracy says little, look at f1"
            )
    if data and "validation" not in data:
        yield Finding("note", "there is no validation data, so nothing was evaluated and the last weights were taken")


def _result(run: RunFiles) -> Iterator[Finding]:
    summary = summarize(run)
    majority = numbers(run.result).get("majority")
    if majority is not None and summary.metric == "accuracy" and summary.best is not None and summary.best <= majority:
        yield Finding(
            "problem",
            f"the best accuracy {summary.best:.4f} is not above {majority:.4f}, which always answering the commonest label gives",
        )
    losses = [found["loss"] for record in run.evaluations if "loss" in (found := numbers(record["evaluation"]))]
    if len(losses) > 1 and losses[-1] > OVERFIT * min(losses):
        yield Finding(
            "note", f"the evaluation loss rose from {min(losses):.4f} to {losses[-1]:.4f} by the end: fewer epochs would do"
        )


def _pace(run: RunFiles) -> Iterator[Finding]:
    seconds = numbers(run.measured.get("seconds"))
    total = sum(seconds.values())
    if total and seconds.get("data", 0.0) / total > WAIT_SHARE:
        yield Finding("note", f"{seconds['data'] / total:.0%} of the time went into waiting for data")
    plan = numbers(run.measured.get("plan"))
    for name, what in (("bytes", "peak memory"), ("step_s", "time of a step")):
        planned, measured = plan.get(f"predicted_{name}"), plan.get(f"measured_{name}")
        if planned and measured and abs(planned / measured - 1) > PLAN_ERROR:
            share, side = abs(planned / measured - 1), "below" if planned < measured else "above"
            yield Finding("note", f"the planned {what} is {share:.0%} {side} the measured one")
