"""Commands on several processes: whether this process starts them, or is one of them already."""

import os
from collections.abc import Sequence

import typer

from modelzoo.cli.console import Ended, say_error
from modelzoo.errors import ConfigError
from modelzoo.launch import launch, place_of
from modelzoo.quantities import counted

__all__ = ["on_ranks"]


def on_ranks(ctx: typer.Context, words: Sequence[str], ranks: int | None, *, asked_by: str | None) -> None:
    """Run this command on `ranks` processes of this machine and end with their exit code; return where it is not for us to start.

    Nothing is started for one process, and under torchrun or srun, which have done so already.

    Args:
        ctx: Of the command.
        words: The command as it was typed.
        ranks: How many; None leaves it to the environment.
        asked_by: The setting that asks for them, which must then fit the number that are there; None takes any.

    Raises:
        ConfigError: Another number was started.
        Ended: The processes have ended.
    """
    place = place_of(os.environ)
    is_started = bool(os.environ.get("RANK")) or place.world_size > 1
    if is_started and ranks is not None and asked_by is not None and ranks != place.world_size:
        raise ConfigError(
            f"{asked_by}={ranks}: this run was started on {counted(place.world_size, 'process')} (WORLD_SIZE or SLURM_NTASKS); "
            f"leave {asked_by} out, or start {ranks}"
        )
    if is_started or ranks is None or ranks == 1:
        return
    is_debug = bool((ctx.find_root().obj or {}).get("is_debug"))
    raise Ended(launch([*words, *(["--debug"] if is_debug else [])], ranks, say_error=say_error))
