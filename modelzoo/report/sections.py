"""The report's sections on what happened: curves, evaluations, time and memory."""

from html import escape
from typing import Any

from modelzoo.quantities import time_text
from modelzoo.report.parts import number, seconds_text, size, table
from modelzoo.report.run_files import RunFiles, numbers
from modelzoo.report.summary import summarize
from modelzoo.report.svg import NARROW, Curve, line_chart, share_bar, smoothed

__all__ = ["curves", "evaluations", "memory", "time"]

METRICS_SHOWN = 4
FEW_STEPS = 25
EVALUATIONS_SHOWN = 20


def curves(run: RunFiles) -> str:
    """Return the loss, the learning rate and the metrics over the steps."""
    losses = _column(run, "loss")
    has_many = len(losses) > FEW_STEPS
    drawn = [Curve(name="training loss, each step", points=losses, color="series-1-pale")] if has_many else []
    drawn.append(Curve(name="training loss, smoothed" if has_many else "training loss", points=smoothed(losses)))
    drawn.append(Curve(name="evaluation loss", points=_metric(run, "loss"), color="series-2", is_marked=True))
    text = f"<h3>Loss over steps</h3>{line_chart(drawn, label='loss over steps')}"
    pair = []
    for title, key in (("Learning rate", "lr"), ("Gradient norm before clipping", "grad_norm")):
        chart = line_chart(
            [Curve(name=title, points=_column(run, key))], label=f"{title} over steps", is_from_zero=True, width=NARROW
        )
        pair.append(f"<div><h3>{title}</h3>{chart}</div>")
    text += f"""<div class="pair">{"".join(pair)}</div>"""
    names = [name for name in _metric_names(run) if name != "loss"][:METRICS_SHOWN]
    metrics = [
        Curve(name=name, points=_metric(run, name), color=f"series-{index}", is_marked=True) for index, name in enumerate(names, 1)
    ]
    return text + (f"<h3>Metrics of the evaluations</h3>{line_chart(metrics, label='metrics over steps')}" if names else "")


def evaluations(run: RunFiles) -> str:
    """Return the table of evaluations, the best one marked, and the metrics on the test data."""
    names = _metric_names(run)
    best = summarize(run).best_step
    rows = [
        [
            number(record["step"]),
            number(record.get("epoch"), 2),
            time_text(record.get("seconds", 0.0)),
            *(number(record["evaluation"].get(name)) for name in names),
            "best" if record["step"] == best else "",
        ]
        for record in run.evaluations
    ]
    header = ["step", "epoch", "at", *names, ""]
    text = table(header, rows[-EVALUATIONS_SHOWN:], best=_best_row(rows[-EVALUATIONS_SHOWN:]))
    if len(rows) > EVALUATIONS_SHOWN:
        earlier = table(header, rows[:-EVALUATIONS_SHOWN], best=_best_row(rows[:-EVALUATIONS_SHOWN]))
        text = f"<details><summary>{len(rows) - EVALUATIONS_SHOWN} earlier evaluations</summary>{earlier}</details>{text}"
    majority = numbers(run.result).get("majority")
    if majority is not None:
        text += f'<p class="sub">Always answering with the commonest label has an accuracy of {majority:.4f}.</p>'
    test = run.result.get("test")
    if isinstance(test, dict):
        text += f"<h3>Test data, with the kept weights</h3>{table(list(test), [[number(value) for value in test.values()]])}"
    return text


def _best_row(rows: list[list[str]]) -> int | None:
    return next((index for index, row in enumerate(rows) if row[-1]), None)


def time(run: RunFiles) -> str:
    """Return where the time of a step went, the speed, and the plan beside what was measured."""
    seconds = numbers(run.measured.get("seconds"))
    total = sum(seconds.values()) or 1.0
    texts = {name: f"{seconds_text(value)} ({value / total:.0%})" for name, value in seconds.items()}
    parts = ["<h3>An average step</h3>" + share_bar(seconds, texts)]
    rows = _plan_rows(run, "step_s", "a step", seconds_text)
    if len(run.steps) > 1:
        last = numbers(run.steps[-1])
        spent = max(last.get("seconds", 0.0), 1e-9)
        speed = (
            f"{last.get('tokens', 0) / spent:,.0f} tokens/s and {last.get('samples', 0) / spent:,.1f} samples/s over the whole run"
        )
        parts.append(f'<p class="sub">{escape(speed)}, {escape(time_text(run.seconds))} in the loop.</p>')
    if rows:
        bound = dict(run.measured.get("plan") or {}).get("bound", "")
        parts.append(f"<h3>Plan and measurement</h3>{table(['', 'planned', 'measured', 'error'], rows)}")
        parts.append(f'<p class="sub">The plan says that a step is bound by {escape(str(bound))}.</p>')
    sent = {name: size(value) for name, value in numbers(run.measured.get("sent_bytes")).items() if value}
    if sent:
        parts.append("<h3>Sent by this rank in a step</h3>" + table(list(sent), [list(sent.values())]))
    return "".join(parts)


def memory(run: RunFiles) -> str:
    """Return the peak beside the plan, and what each unit of the model holds on rank 0."""
    parts = []
    rows = _plan_rows(run, "bytes", "peak", size)
    if rows:
        parts.append(f"<h3>Plan and measurement</h3>{table(['', 'planned', 'measured', 'error'], rows)}")
    units = [unit for unit in run.measured.get("units") or [] if isinstance(unit, dict)]
    held = {
        name: sum(numbers(unit).get(key, 0) for unit in units)
        for name, key in (("parameters", "parameter_bytes"), ("gradients", "gradient_bytes"), ("moments", "moment_bytes"))
    }
    if sum(held.values()):
        parts.append(
            "<h3>The model's values on rank 0 at the end</h3>"
            + share_bar(held, {name: size(value) for name, value in held.items()})
        )
        cells = [
            [
                str(unit.get("name", "")),
                number(unit.get("parameters")),
                *(size(unit.get(key)) for key in ("whole_bytes", "parameter_bytes", "gradient_bytes", "moment_bytes")),
            ]
            for unit in units
        ]
        header = ["unit", "parameters", "whole", "parameters here", "gradients here", "moments here"]
        parts.append(f"<details><summary>{len(units)} units</summary>{table(header, cells)}</details>")
    tiers = run.measured.get("tiers")
    if isinstance(tiers, dict):
        parts.append(_tiers(tiers))
    return "".join(parts) or '<p class="none">nothing was recorded</p>'


def _tiers(tiers: dict[str, Any]) -> str:
    resident = {name: value for name, value in numbers(tiers.get("resident_bytes")).items() if value}
    moved = [
        [doing, kind, size(value)]
        for doing, key in (("read", "read_bytes"), ("written", "written_bytes"))
        for kind, value in numbers(tiers.get(key)).items()
        if value
    ]
    waited = f"{size(tiers.get('disk_bytes'))} on disk; the model waited {seconds_text(tiers.get('waited_s'))} a step for it."
    return (
        "<h3>Tiers: in memory at its fullest</h3>"
        + share_bar(resident, {name: size(value) for name, value in resident.items()})
        + f'<p class="sub">{escape(waited)}</p>'
        + (table(["a step", "what", "bytes"], moved) if moved else "")
    )


def _plan_rows(run: RunFiles, key: str, name: str, shown: Any) -> list[list[str]]:
    plan = numbers(run.measured.get("plan"))
    planned, measured = plan.get(f"predicted_{key}"), plan.get(f"measured_{key}")
    if not planned:
        return []
    return [
        [
            name,
            shown(planned),
            shown(measured) if measured else "not measured",
            f"{planned / measured - 1:+.0%}" if measured else "",
        ]
    ]


def _metric_names(run: RunFiles) -> list[str]:
    """Return the metrics of the evaluations, the deciding one first."""
    names = list(dict.fromkeys(name for record in run.evaluations for name in record["evaluation"]))
    return sorted(names, key=lambda name: name != run.metric)


def _metric(run: RunFiles, name: str) -> list[tuple[float, float]]:
    return [
        (record["step"], record["evaluation"][name]) for record in run.evaluations if _is_number(record["evaluation"].get(name))
    ]


def _column(run: RunFiles, key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in run.steps if _is_number(record.get(key))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
