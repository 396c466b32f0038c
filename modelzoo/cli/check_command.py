"""`modelzoo check`: everything that can fail, before the run."""

import dataclasses
from typing import Annotated

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import Ended, say, say_json
from modelzoo.cli.doctor import finding_table
from modelzoo.quantities import counted

__all__ = ["check"]


def check(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", autocompletion=complete.recipes, help="As for train; key=value after it changes a setting."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Check a recipe before it costs: settings, access, data, columns, labels, lengths, tokenizer, memory, disk, versions.

    modelzoo check bert-boolq model=FOLDER data.train=FILE data.validation=FILE

    All rows are read and tokenized as the run will do; no weight is read and nothing is written. All problems are listed, not the
    first alone. Exit code 2 with problems, 0 with notes or none.
    """
    from modelzoo.config import resolve_settings

    resolved = resolve_settings(recipe, ctx.args)
    from modelzoo.cli.preflight import preflight

    found = list(preflight(resolved.settings))
    problems = sum(finding.level == "problem" for finding in found)
    if as_json:
        say_json([dataclasses.asdict(finding) for finding in found])
    else:
        for note in resolved.notes:
            say(f"note     {note}")
        say(finding_table(found))
        notes = sum(finding.level == "note" for finding in found)
        end = "nothing was started" if problems else f"start it: modelzoo train {' '.join([recipe, *ctx.args])}"
        say(f"\n {counted(problems, 'problem')}, {counted(notes, 'note')}; {end}")
    if problems:
        raise Ended(2)
