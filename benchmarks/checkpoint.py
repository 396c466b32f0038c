"""Saving and loading a training state: modelzoo against torch.distributed.checkpoint, in turns, in the same processes.

    python benchmarks/checkpoint.py --ranks 1 --rounds 5
    python benchmarks/checkpoint.py --ranks 2 --rounds 5

The state is that of AdamW after a step: about 250 MB, a third of it weights. modelzoo hashes every byte when it saves and when it
loads, makes files and folder durable and publishes by a rename; plain DCP makes its files durable and does none of the rest. Both
load as a resumed run does, into a new optimizer that has no moments yet.
"""

import argparse
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from modelzoo.runtime import CheckpointSaver, Identity, World, connect, load_checkpoint, prepare, save_checkpoint

IDENTITY = Identity("config", "data")
SIDES = ("modelzoo", "DCP")


def build(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(layers)))


def trained(world: World, width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build(width, layers)
    if world.world_size > 1:
        prepare(model, world)
    optimizer = fresh(model)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def fresh(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def seconds_of(world: World, action: Callable[[], object]) -> tuple[float, float]:
    """Return the time on the clock, and on all processors of all ranks."""
    os.sync()
    world.barrier()
    started, worked = time.perf_counter(), time.process_time()
    action()
    own = time.process_time() - worked
    world.barrier()
    seconds = time.perf_counter() - started
    return seconds, world.sum([own])[0]


def dcp_save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def dcp_load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def measure(rank: int, options: argparse.Namespace, port: int, place: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port))
    torch.set_num_threads(1)
    with connect(device="cpu") as world:
        if world.world_size == 1:
            world.joined()
        model, optimizer = trained(world, options.width, options.layers)
        size = sum(parameter.numel() for parameter in model.parameters()) * 12
        options_of_save = {"model": model, "optimizer": optimizer, "world": world, "state": {}, "identity": IDENTITY}
        times: dict[str, list[tuple[float, float]]] = {}
        for number in range(options.rounds + 1):
            ours, theirs = Path(place) / f"ours{number}", Path(place) / f"dcp{number}"
            saver = CheckpointSaver(Path(place) / f"background{number}", world, IDENTITY, keep_last=2, background=True)
            first, second = fresh(model), fresh(model)
            actions: dict[str, Callable[[], object]] = {
                "save modelzoo": partial(save_checkpoint, ours, 1, **options_of_save),
                "save DCP": partial(dcp_save, theirs, model, optimizer),
                "call in background": partial(saver.save, 1, model=model, optimizer=optimizer, state={}),
                "rest in background": saver.settle,
                "load modelzoo": partial(load_checkpoint, ours / "step-1", model=model, optimizer=first, world=world),
                "load DCP": partial(dcp_load, theirs, model, second),
            }
            found = {name: seconds_of(world, action) for name, action in actions.items()}
            if number:  # the first round warms up
                for name, seconds in found.items():
                    times.setdefault(name, []).append(seconds)
            world.barrier()
            if world.is_main:
                for path in Path(place).iterdir():
                    shutil.rmtree(path)
            world.barrier()
        if world.is_main:
            show(times, size, options)


def show(times: dict[str, list[tuple[float, float]]], size: int, options: argparse.Namespace) -> None:
    print(f"{size / 1e6:.0f} MB of state, ranks {options.ranks}, median of {options.rounds} rounds: clock, processors of all ranks")
    for name, some in times.items():
        print(f"  {name:20} {text([clock for clock, _ in some], ' s')}   {text([work for _, work in some], ' s')}")
    for what in ("save", "load"):
        pairs = list(zip(times[f"{what} modelzoo"], times[f"{what} DCP"], strict=True))
        clock, work = ([ours[which] / theirs[which] for ours, theirs in pairs] for which in (0, 1))
        print(f"  {what} modelzoo / DCP  {text(clock)}   {text(work)}")


def text(values: list[float], unit: str = "") -> str:
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--folder", help="a folder on the file system to measure; a temporary one by default")
    options = parser.parse_args()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        multiprocessing.spawn(measure, (options, port, place), nprocs=options.ranks)


if __name__ == "__main__":
    main()
