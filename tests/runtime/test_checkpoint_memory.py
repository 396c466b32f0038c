"""Saving takes no second copy of what a rank holds; in the background it takes exactly one."""

import os
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from torch import nn

from modelzoo.runtime import CheckpointSaver, Identity, connect, prepare, save_checkpoint

MIB = 2**20
WIDTH, LAYERS = 1024, 6
IDENTITY = Identity("config", "data")


def status(name: str) -> int:
    """Return a memory figure of this process in bytes, as Linux counts it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def peak_of(action) -> int:
    """Return by how many bytes the resident memory rose at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def measure(folder: str) -> None:
    with connect(device="cpu") as world:
        torch.manual_seed(0)
        model = prepare(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), world)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        shard = 12 * sum(parameter.numel() for parameter in model.parameters()) // world.world_size
        assert shard > 30 * MIB
        options = {"model": model, "optimizer": optimizer, "state": {}}
        save_checkpoint(Path(folder), 1, world=world, identity=IDENTITY, **options)
        assert peak_of(lambda: save_checkpoint(Path(folder), 2, world=world, identity=IDENTITY, **options)) < 8 * MIB
        saver = CheckpointSaver(Path(folder) / "background", world, IDENTITY, keep_last=2, background=True)
        assert peak_of(lambda: saver.save(1, **options)) < shard + 8 * MIB
        saver.settle()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="Linux tells the peak of a part of a process")
@pytest.mark.parametrize("ranks", [1, 2])
def test_save_takes_no_second_copy(tmp_path, ranks):
    run_distributed(measure, ranks, str(tmp_path))
