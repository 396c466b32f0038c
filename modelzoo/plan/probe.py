"""Measuring this machine in about two seconds: matrix products, memory, disk."""

import dataclasses
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from modelzoo.plan.machine import Machine

__all__ = ["probe"]

SECONDS = 0.4
"""For each figure."""
DISK_BYTES = 64 * 2**20


def probe(machine: Machine, folder: Path, *, hidden_size: int = 768, tokens: int = 512) -> Machine:
    """Return a machine with the rates that are measured here, with torch's threads as they are.

    Args:
        machine: This one, whose sizes are kept.
        folder: On the disk that is measured; a file is written there and removed.
        hidden_size: Of the matrix products, D x 4 D.
        tokens: Rows of them.
    """
    device = torch.device("cuda" if machine.kind == "cuda" else "cpu")
    flops = dict(machine.flops)
    for name in ("float32", "bfloat16") if machine.kind == "cuda" else ("float32",):
        rows = torch.randn(tokens, hidden_size, device=device, dtype=getattr(torch, name))
        table = torch.randn(4 * hidden_size, hidden_size, device=device, dtype=getattr(torch, name))
        work = 2.0 * tokens * hidden_size * 4 * hidden_size
        flops[name] = work / _seconds_each(lambda rows=rows, table=table: torch.nn.functional.linear(rows, table), device)  # type: ignore[misc]  # bound now
    values = torch.ones(16 * 2**20, device=device)
    target = torch.empty_like(values)
    copied = 2.0 * values.nbytes / _seconds_each(lambda: target.copy_(values), device)
    read, write = _disk(folder)
    heads = torch.randn(1, 8, 256, 64, device=device)
    attended = 4.0 * 8 * 256 * 256 * 64
    attention = attended / _seconds_each(lambda: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads), device)
    return dataclasses.replace(
        machine, flops=flops, memory_bandwidth=copied, disk_read=read, disk_write=write, attention_flops=attention
    )


def _seconds_each(call: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of a call, so that what else the machine does counts least."""
    call()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def _disk(folder: Path) -> tuple[float, float]:
    """Return bytes a second of reading and writing past the page cache where the file system allows it."""
    buffer = mmap.mmap(-1, 4 * 2**20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
        direct = getattr(os, "O_DIRECT", 0)
        try:
            handle = os.open(file.name, os.O_RDWR | direct)
        except OSError:
            handle = os.open(file.name, os.O_RDWR)
        try:
            write = _pass(lambda place: os.pwrite(handle, buffer, place), len(buffer))
            read = _pass(lambda place: os.preadv(handle, [buffer], place), len(buffer))
        finally:
            os.close(handle)
    return read, write


def _pass(move: Callable[[int], int], size: int) -> float:
    started, moved = time.perf_counter(), 0
    while moved < DISK_BYTES and time.perf_counter() - started < SECONDS:
        move(moved)
        moved += size
    return moved / (time.perf_counter() - started)
