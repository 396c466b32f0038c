"""`modelzoo demo`: the main job from end to end, on a model and rows that ship with the project, without network."""

import shlex
import tempfile
from pathlib import Path

import typer

from modelzoo.cli.console import Ended, is_first_process, say
from modelzoo.cli.ranks import on_ranks
from modelzoo.cli.results import quiet_transformers, say_result, show_log

__all__ = ["demo"]


def demo(ctx: typer.Context) -> None:
    """Train the shipped small BERT on the shipped questions, evaluate, save, and prove that transformers loads the result.

    It takes about ten seconds on two cores and needs no network; key=value changes a setting, as in train.
    """
    from modelzoo.config import resolve_settings

    resolved = resolve_settings("demo", ctx.args)
    on_ranks(ctx, ["demo", *ctx.args], resolved.settings.parallel.ranks, asked_by="parallel.ranks")
    for note in resolved.notes:
        say(f"note     {note}")
    show_log()
    from modelzoo.training import train

    result = train(resolved.settings, recipe_file=resolved.file)
    say_result(result)
    if is_first_process() and result.final is not None:
        _prove(result.final)
        say(f"ask      {_question(str(resolved.settings.data.validation), result.folder)}")
        say(f"read     {resolved.file.parent / 'README.md'}: what this small world can show, and what it cannot")
        say("go on    modelzoo init bert-boolq: the same on a real model and real questions")


def _question(rows: str, run: Path) -> str:
    """Return a command that asks the trained model the first question of the validation rows."""
    from modelzoo.data import read_rows

    row = read_rows(rows, max_rows=1)[0]
    return f"modelzoo predict {run} --text {shlex.quote(row['question'])} --pair {shlex.quote(row['passage'])}"


def _prove(final: Path) -> None:
    """Load the result in transformers, strictly, and compare; an adapter is written with its base as one model for that.

    Raises:
        Ended: The two differ; the exit code is 1.
    """
    from modelzoo.models.adapted import write_merged
    from modelzoo.verification import verify

    quiet_transformers()
    with tempfile.TemporaryDirectory() as place:
        is_adapter = (final / "adapter_config.json").is_file()
        found = verify(write_merged(final, Path(place) / "merged") if is_adapter else final, local_files_only=True)
    if is_adapter:
        say("proof    of the adapter and its base as one model, as `modelzoo export RUN DST --to merged` writes it:")
    loading = "strictly" if found.is_strict else "NOT strictly"
    within = "within" if found.is_equal else "NOT within"
    say(f"proof    transformers' {found.reference} loads it {loading}; on one batch the largest differences are")
    say(f"         {max(found.outputs.values()):.1e} in logits and {found.gradient:.1e} in gradients, {within} {found.tolerance:g}")
    if not (found.is_equal and found.is_strict):
        raise Ended(1)
