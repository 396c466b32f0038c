"""`modelzoo push`: a result to the hub, apart from the run, which it can never fail."""

from pathlib import Path
from typing import Annotated

import typer

from modelzoo.cli.console import columns, say
from modelzoo.errors import CheckpointError

__all__ = ["push"]


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A finished run, or a folder of a model.")],
    name: Annotated[str, typer.Argument(metavar="USER/NAME", help="On the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; by default it is private.")] = False,
) -> None:
    """Upload a result to the hub: model, tokenizer, card. Needs `hf auth login`; after an interruption the same command goes on.

    A new repository is private unless --public is given; one that exists keeps what it is.
    """
    if (run / "resolved.yaml").is_file() and not (run / "final").is_dir():
        raise CheckpointError(f"{run}: the run is not finished, it has no final/; continue it with: modelzoo resume {run}")
    folder = run / "final" if (run / "final").is_dir() else run
    from modelzoo.hub.push import push_folder

    done = push_folder(folder, name, private=not public)
    rows = [["pushed", f"{folder} to {done.url} ({'private' if done.is_private else 'public'})"]]
    say(columns([*rows, ["load it", f'modelzoo.from_pretrained("{name}")']], indent=0, gap=4))
