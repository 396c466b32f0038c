"""`modelzoo train` and `modelzoo resume`: from settings to a finished run, and on from where one stopped."""

from pathlib import Path
from typing import Annotated

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import say
from modelzoo.cli.ranks import on_ranks
from modelzoo.cli.results import say_result, show_log

__all__ = ["resume", "train"]

AsJson = Annotated[bool, typer.Option("--json", help="Write how it ended as JSON to stdout; what the run says goes to stderr.")]


def train(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=complete.recipes,
            help="A recipe's name, a YAML file, a folder with a recipe.yaml, or a run.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Train as a recipe says; key=value or --key value after it changes a setting.

    modelzoo train bert-boolq model=FOLDER data.train=FILE data.validation=FILE train.epochs=3

    modelzoo train bert-boolq ranks=4 starts four processes on this machine; torchrun -m modelzoo train and srun modelzoo train
    bring their own. Ctrl-C finishes the step and saves, a second one stops at once; SIGTERM saves and ends with exit code 75.

    `modelzoo explain` lists all keys; Hugging Face's names (learning_rate, num_train_epochs) are understood.
    """
    from modelzoo.config import resolve_settings

    resolved = resolve_settings(recipe, ctx.args)
    words = ["train", recipe, *(["--json"] if as_json else []), *ctx.args]
    on_ranks(ctx, words, resolved.settings.parallel.ranks, asked_by="parallel.ranks")
    for note in resolved.notes:
        say(f"note     {note}", on_stderr=as_json)
    show_log(on_stderr=as_json)
    from modelzoo.training import LineProgress
    from modelzoo.training import train as start

    progress = LineProgress(resolved.settings.output.log_every_s) if as_json else None
    say_result(start(resolved.settings, progress=progress, recipe_file=resolved.file), as_json=as_json)


def resume(
    ctx: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was stopped, as runs/bert-boolq-001.")],
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes to start here; by default as many as train started.")] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint; nothing is edited, and the result is that of a run that never stopped.

    Any number of processes may do it, also another than before.

    modelzoo resume RUN parallel.recompute=blocks memory.host=8GiB data.train=FILE changes what decides nothing about the result:
    layout, tiers, places, checkpoints, output.
    """
    wanted = ranks
    if wanted is None and (run / "resolved.yaml").is_file():
        from modelzoo.config import load_settings

        wanted = load_settings(str(run / "resolved.yaml"), ctx.args).parallel.ranks
    options = [*([] if ranks is None else ["--ranks", str(ranks)]), *(["--json"] if as_json else [])]
    words = ["resume", str(run), *options, *ctx.args]
    on_ranks(ctx, words, wanted, asked_by=None if ranks is None else "--ranks")
    show_log(on_stderr=as_json)
    from modelzoo.training import LineProgress
    from modelzoo.training import resume as go_on

    say_result(go_on(run, progress=LineProgress() if as_json else None, changes=ctx.args), as_json=as_json)
