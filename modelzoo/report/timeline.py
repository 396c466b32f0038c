"""The report's section on a run with tiers: what each tier held while its first steps went, beside the plan and its budgets."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from modelzoo.report.parts import number, seconds_text, size, table
from modelzoo.report.run_files import RunFiles
from modelzoo.report.svg import Band, stacked_chart

__all__ = ["timeline"]

MOST_KINDS = 6


def timeline(run: RunFiles) -> str:
    """Return charts of resident bytes by kind for each tier, and a table of plan and measurement; "" where nothing was recorded."""
    samples = [line for line in run.timeline if line.get("kind") == "sample" and isinstance(line.get("resident"), dict)]
    if not samples:
        return ""
    plan = next((line for line in run.timeline if line.get("kind") == "plan"), {})
    steps = [line for line in run.timeline if line.get("kind") == "step"]
    tiers = list(dict.fromkeys(tier for line in samples for tier in line["resident"]))
    charts = "".join(_tier_chart(tier, samples, _mapping(_mapping(plan.get("tiers")).get(tier))) for tier in tiers)
    return charts + _steps_table(steps, tiers) + _peaks_table(plan, steps, tiers)


def _tier_chart(tier: str, samples: Sequence[Mapping[str, Any]], planned: Mapping[str, Any]) -> str:
    totals: dict[str, float] = {}
    for line in samples:
        for kind, held in _mapping(line["resident"].get(tier)).items():
            totals[kind] = max(totals.get(kind, 0.0), _number(held))
    if not any(totals.values()):
        return f'<p class="sub">{escape(tier)} held nothing.</p>'
    kinds = sorted((kind for kind, most in totals.items() if most), key=lambda kind: -totals[kind])
    shown, rest = kinds[: MOST_KINDS - 1], kinds[MOST_KINDS - 1 :]
    if len(rest) == 1:
        shown, rest = kinds, []
    bands = [
        Band(name=kind, values=[_number(_mapping(line["resident"].get(tier)).get(kind)) for line in samples]) for kind in shown
    ]
    if rest:
        sums = [sum(_number(_mapping(line["resident"].get(tier)).get(kind)) for kind in rest) for line in samples]
        bands.append(Band(name="others: " + ", ".join(rest), values=sums))
    times = [_number(line.get("time_s")) for line in samples]
    texts = [f"step {line.get('step')}: {line.get('event', '')} {line.get('unit', '')}".strip() for line in samples]
    marks = {name: _number(planned.get(key)) for name, key in (("budget", "budget_bytes"), ("planned peak", "peak_bytes"))}
    marks = {name: value for name, value in marks.items() if value}
    chart = stacked_chart(times, bands, texts=texts, marks=marks, label=f"bytes held by {tier} over seconds")
    return f"<h3>{escape(tier)}: what it holds, over the seconds of the first steps</h3>{chart}"


def _steps_table(steps: Sequence[Mapping[str, Any]], tiers: Sequence[str]) -> str:
    pairs = list(dict.fromkeys(pair for line in steps for pair in _mapping(line.get("traffic"))))
    rows = []
    for line in steps:
        peaks = [size(sum(map(_number, _mapping(_mapping(line.get("peak")).get(tier)).values()))) for tier in tiers]
        moved = [size(sum(map(_number, _mapping(_mapping(line.get("traffic")).get(pair)).values()))) for pair in pairs]
        rows.append(
            [number(line.get("step")), seconds_text(line.get("seconds")), seconds_text(line.get("stall_s")), *peaks, *moved]
        )
    header = ["step", "time", "waited", *(f"{tier}, fullest" for tier in tiers), *pairs]
    return f"<h3>Steps</h3>{table(header, rows)}" if rows else ""


def _peaks_table(plan: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], tiers: Sequence[str]) -> str:
    rows = []
    for tier in tiers:
        planned = _mapping(_mapping(plan.get("tiers")).get(tier))
        found = [sum(map(_number, _mapping(_mapping(line.get("peak")).get(tier)).values())) for line in steps]
        if planned.get("peak_bytes") and any(found):
            expected, measured = _number(planned["peak_bytes"]), max(found)
            budget = size(planned.get("budget_bytes")) or "none"
            rows.append([tier, budget, size(expected), size(measured), f"{expected / measured - 1:+.0%}"])
    return f"<h3>Tiers: plan and measurement</h3>{table(['tier', 'budget', 'planned', 'measured', 'error'], rows)}" if rows else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
