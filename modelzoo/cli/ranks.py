"""Commands on several processes: whether this process starts them, or is one of them already."""

import os
from collections.abc import Sequence

import typer

from modelzoo.cli.console import Ended, say_error
from modelzoo.errors import ConfigError
from modelzoo.launch import is_started, launch, place_of
from modelzoo.quantities import counted, readable_size

__all__ = ["on_ranks"]

_PROCESS_BYTES = 200 * 2**20
"""What a process takes for itself once torch is loaded, at least."""


def on_ranks(ctx: typer.Context, words: Sequence[str], ranks: int | None, *, asked_by: str | None) -> None:
    """Run this command on `ranks` processes of this machine and end with their exit code; return where it is not for us to start.

    Nothing is started for one process, and under torchrun or srun, which have done so already.

    Args:
        ctx: Of the command.
        words: The command as it was typed.
        ranks: How many; None leaves it to the environment.
        asked_by: The setting that asks for them, which must then fit the number that are there; None takes any.

    Raises:
        ConfigError: Another number was started, or the machine has no memory for so many.
        Ended: The processes have ended.
    """
    place, has_started = place_of(os.environ), is_started(os.environ)
    if has_started and ranks is not None and asked_by is not None and ranks != place.world_size:
        raise ConfigError(
            f"{asked_by}={ranks}: this run was started on {counted(place.world_size, 'process')} (WORLD_SIZE or SLURM_NTASKS); "
            f"leave {asked_by} out, or start {ranks}"
        )
    if has_started or ranks is None or ranks == 1:
        return
    _require_memory(ranks, asked_by or "ranks")
    is_debug = bool((ctx.find_root().obj or {}).get("is_debug"))
    raise Ended(launch([*words, *(["--debug"] if is_debug else [])], ranks, say_error=say_error))


def _require_memory(ranks: int, asked_by: str) -> None:
    """Refuse to start processes that would take all memory before they hold a model: the system would end them, or others."""
    import psutil

    free = psutil.virtual_memory().available
    if ranks * _PROCESS_BYTES > free:
        raise ConfigError(
            f"{asked_by}={ranks}: {counted(ranks, 'process')} take at least {readable_size(ranks * _PROCESS_BYTES)} before they "
            f"hold a model, and {readable_size(free)} are free; this machine has {counted(os.cpu_count() or 1, 'core')}"
        )
