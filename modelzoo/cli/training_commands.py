"""`modelzoo train` and `modelzoo resume`: from settings to a finished run, and on from where one stopped."""

from pathlib import Path
from typing import Annotated

import typer

from modelzoo.cli.console import say
from modelzoo.cli.results import say_result, show_log

__all__ = ["resume", "train"]


def train(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, a YAML file, or a folder with a recipe.yaml.")],
) -> None:
    """Train as a recipe says; key=value or --key value after it changes a setting.

    modelzoo train bert-boolq model=FOLDER data.train=FILE data.validation=FILE train.epochs=3

    `modelzoo explain` lists all keys; Hugging Face's names (learning_rate, num_train_epochs) are understood. On several processes:
    torchrun --nproc-per-node 2 -m modelzoo train RECIPE.
    """
    from modelzoo.config import resolve_settings

    resolved = resolve_settings(recipe, ctx.args)
    for note in resolved.notes:
        say(f"note     {note}")
    show_log()
    from modelzoo.training import train as start

    say_result(start(resolved.settings, recipe_file=resolved.file))


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was stopped, as runs/bert-boolq-001.")],
) -> None:
    """Continue a run from its last checkpoint; nothing is edited, and the result is that of a run that never stopped."""
    show_log()
    from modelzoo.training import resume as go_on

    say_result(go_on(run))
