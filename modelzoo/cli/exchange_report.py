"""What `modelzoo doctor --comm` says: how fast the ranks of this machine, or of a torchrun or srun step, exchange tensors."""

import dataclasses
import os

import typer

from modelzoo.cli.console import columns, say, say_json
from modelzoo.cli.ranks import on_ranks
from modelzoo.launch import place_of
from modelzoo.quantities import counted

__all__ = ["exchange_report"]

FEWEST = 2


def exchange_report(ctx: typer.Context, ranks: int | None, *, as_json: bool) -> None:
    """Measure on `ranks` processes and show a table.

    Args:
        ctx: Of the command.
        ranks: Processes to start here; None starts one a GPU, or two. Under torchrun or srun none are started.
        as_json: Whether to write JSON.
    """
    words = ["doctor", "--comm", *(["--json"] if as_json else [])]
    is_alone = place_of(os.environ).world_size == 1
    on_ranks(ctx, words, _default_ranks() if ranks is None and is_alone else ranks, asked_by="--ranks")
    from modelzoo.runtime import connect, failing_together
    from modelzoo.runtime.exchange.speed import measure_exchanges

    with connect() as world, failing_together(world, "the measurement"):
        found = measure_exchanges(world) if world.world_size > 1 else []
        backend = "nccl" if world.device.type == "cuda" else "gloo"
    if as_json:
        facts = {"backend": backend, "device": world.device.type, "ranks": world.world_size}
        say_json({**facts, "exchanges": [dataclasses.asdict(one) for one in found]})
        return
    say(f"{counted(world.world_size, 'process')} on {world.device.type}, exchanging over {backend}")
    if not found:
        say("one process exchanges nothing; use --ranks 2")
        return
    rows = [["exchange", "size", "time", "GB/s"]]
    for one in sorted(found, key=lambda one: one.kind):
        rows.append([one.kind, _size(one.size_bytes), _time(one.seconds), f"{one.bytes_per_s / 1e9:.2f}"])
    say(columns(rows))
    say("\n time: median of one exchange on the slowest process; GB/s: what each process sends in a ring of them, over that time")


def _default_ranks() -> int:
    import torch

    return max(torch.cuda.device_count() if torch.cuda.is_available() else FEWEST, FEWEST)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:.0f} KiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
