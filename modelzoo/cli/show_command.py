"""`modelzoo show`: a run, how far it is and where its files are; or a recipe, every setting and where it was set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import columns, say, say_json

if TYPE_CHECKING:
    from modelzoo.report import RunFiles

__all__ = ["show"]

MOST_VALUE = 72
FILES = {
    "final": "the result, a Hugging Face folder",
    "report.html": "the run on one page",
    "metrics.jsonl": "every step and evaluation",
    "log.txt": "what it said",
    "loss.png": "picture",
    "resolved.yaml": "every setting",
    "checkpoints": "what modelzoo resume needs",
}


def show(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|RECIPE", autocompletion=complete.recipes, help="Folder of a run, or a recipe; key=value changes a setting."
        ),
    ],
    page: Annotated[bool, typer.Option("--report", help="Of a run: write its report.html again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show a run (state, numbers, files, warnings) or a recipe (every setting, its value, and where that was set).

    modelzoo show runs/demo-001

    modelzoo show bert-boolq train.epochs=5
    """
    from modelzoo.report import is_run, read_run, write_report

    if not is_run(Path(what)):
        _show_recipe(what, ctx.args, as_json=as_json)
        return
    from modelzoo.errors import InputError

    if ctx.args:
        raise InputError(f"{' '.join(ctx.args)}: a run's settings are what they were; key=value belongs to a recipe")
    if page:
        say(f"wrote {write_report(Path(what))}")
        return
    _show_run(read_run(Path(what)), as_json=as_json)


def _show_run(run: "RunFiles", *, as_json: bool) -> None:
    from modelzoo.quantities import time_text
    from modelzoo.report import sparkline, summarize
    from modelzoo.report.findings import findings
    from modelzoo.report.run_files import numbers

    summary, known = summarize(run), findings(run)
    files = {name: str(run.folder / name) for name in FILES if (run.folder / name).exists()}
    at_best = run.evaluation_at(summary.best_step)
    test = numbers(run.result.get("test"))
    if as_json:
        more = {"best_evaluation": at_best, "test": test, "files": files}
        say_json({**summary.to_json(), **more, "findings": [finding._asdict() for finding in known], "settings": run.settings})
        return
    total = f" of {summary.total_steps}" if summary.total_steps else ""
    rows = [
        ["run", f"{run.folder}: {summary.state} at step {summary.step}{total}, {time_text(summary.seconds)} in the loop"],
        ["model", f"{summary.model} for {run.section('model').get('task')}"],
        ["recipe", f"{summary.recipe}, started {summary.started}"],
    ]
    if losses := [record["loss"] for record in run.steps]:
        rows.append(["loss", f"{losses[0]:.4f} to {losses[-1]:.4f}  {sparkline(losses, 40)}"])
    for name, values, where in (("best", at_best, f"step {summary.best_step}"), ("test", test, "kept weights")):
        if values:
            rows.append([name, f"{_metrics(values)}  ({where})"])
    plan = numbers(run.measured.get("plan"))
    if plan.get("measured_bytes"):
        rows.append(["plan", _plan(plan)])
    rows += [["note" if finding.level == "note" else "PROBLEM", finding.text] for finding in known]
    rows += [["file", f"{path}  {FILES[name]}"] for name, path in files.items()]
    if summary.state == "stopped" or (summary.state == "failed" and "checkpoints" in files):
        rows.append(["next", f"modelzoo resume {run.folder}"])
    say(columns(rows, indent=0, gap=4))


def _show_recipe(recipe: str, words: list[str], *, as_json: bool) -> None:
    from modelzoo.config import resolve_settings
    from modelzoo.config.keys import list_keys
    from modelzoo.config.schema import RunSettings

    resolved = resolve_settings(recipe, words)
    values = resolved.settings.model_dump(mode="json")
    rows: list[tuple[str, Any, str]] = []
    for key in list_keys(RunSettings):
        value: Any = values
        for part in key.path.split("."):
            value = None if value is None else value[part]
        inner = [origin for path, origin in resolved.origins.items() if path == key.path or path.startswith(f"{key.path}.")]
        rows.append((key.path, value, inner[0] if inner else "default"))
    if as_json:
        say_json({path: {"value": value, "from": origin} for path, value, origin in rows})
        return
    for note in resolved.notes:
        say(f"note     {note}")
    shown = [[path, _value(value), origin] for path, value, origin in rows]
    say(columns([["key", "value", "from"], *shown]))
    say(f"\n file {resolved.file}     what a key means: modelzoo explain KEY")


def _value(value: Any) -> str:
    """Return a value as it would stand in a recipe, cut to a part of a line."""
    from modelzoo.config.problems import show_value

    text = value if isinstance(value, str) and value else show_value(value)
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}..."


def _metrics(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _plan(plan: dict[str, float]) -> str:
    from modelzoo.quantities import readable_size

    planned, measured = plan.get("predicted_bytes", 0.0), plan["measured_bytes"]
    text = f"peak {readable_size(planned)}, measured {readable_size(measured)} ({planned / measured - 1:+.0%})"
    step, taken = plan.get("predicted_step_s"), plan.get("measured_step_s")
    return f"{text}; a step {step:.3g} s, measured {taken:.3g} s ({step / taken - 1:+.0%})" if step and taken else text
