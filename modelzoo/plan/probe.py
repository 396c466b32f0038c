"""Measuring this machine in about two seconds: matrix products, memory, disk."""

import dataclasses
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from modelzoo.plan.machine import Machine

__all__ = ["probe", "probe_products"]

DISK_BYTES = 64 * 2**20
PAGES_BYTES = 16 * 2**20


def probe(machine: Machine, folder: Path, *, hidden_size: int = 768, tokens: int = 512, seconds: float = 0.4) -> Machine:
    """Return a machine with the rates that are measured here, with torch's threads as they are.

    Args:
        machine: This one, whose sizes are kept.
        folder: On the disk that is measured; a file is written there and removed.
        hidden_size: Of the matrix products, D x 4 D.
        tokens: Rows of them.
        seconds: For each figure.
    """
    machine = probe_products(machine, hidden_size=hidden_size, tokens=tokens, seconds=seconds)
    device = _device(machine)
    values = torch.ones(16 * 2**20, device=device)
    copied = 2.0 * values.nbytes / _seconds_each(partial(torch.empty_like(values).copy_, values), device, seconds)
    heads = torch.ones(1, 8, 256, 64, device=device)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, heads, heads, heads)
    attention = 4.0 * 8 * 256 * 256 * 64 / _seconds_each(attend, device, seconds)
    touched = PAGES_BYTES / _seconds_each(_touch, torch.device("cpu"), seconds / 2)
    read, write = _disk(folder, seconds)
    return dataclasses.replace(
        machine, memory_bandwidth=copied, first_touch=touched, disk_read=read, disk_write=write, attention_flops=attention
    )


def probe_products(machine: Machine, *, hidden_size: int, tokens: int, seconds: float) -> Machine:
    """Return a machine with the rate of matrix products that is measured here; draws no number and keeps nothing.

    Args:
        machine: This one.
        hidden_size: Of the products, D x 4 D.
        tokens: Rows of them.
        seconds: For each precision.
    """
    device, flops = _device(machine), dict(machine.flops)
    for name in ("float32", "bfloat16") if machine.kind == "cuda" else ("float32",):
        rows = torch.ones(tokens, hidden_size, device=device, dtype=getattr(torch, name))
        table = torch.ones(4 * hidden_size, hidden_size, device=device, dtype=getattr(torch, name))
        work = 2.0 * tokens * hidden_size * 4 * hidden_size
        flops[name] = work / _seconds_each(partial(torch.nn.functional.linear, rows, table), device, seconds)
    return dataclasses.replace(machine, flops=flops)


def _device(machine: Machine) -> torch.device:
    return torch.device("cuda" if machine.kind == "cuda" else "cpu")


def _seconds_each(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the shortest time of a call, so that what else the machine does counts least."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def _touch() -> None:
    """Write to every page of memory that is new."""
    with mmap.mmap(-1, PAGES_BYTES) as memory:
        memory.write(bytes(PAGES_BYTES))


def _disk(folder: Path, seconds: float) -> tuple[float, float]:
    """Return bytes a second of reading and writing past the page cache where the file system allows it."""
    buffer = mmap.mmap(-1, 4 * 2**20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
        try:
            handle = os.open(file.name, os.O_RDWR | getattr(os, "O_DIRECT", 0))
        except OSError:
            handle = os.open(file.name, os.O_RDWR)
        try:
            written, write = _pass(lambda place: os.pwrite(handle, buffer, place), len(buffer), DISK_BYTES, seconds)
            _, read = _pass(lambda place: os.preadv(handle, [buffer], place), len(buffer), written, seconds)
        finally:
            os.close(handle)
    return read, write


def _pass(move: Callable[[int], int], size: int, most: int, seconds: float) -> tuple[int, float]:
    """Return the bytes that were moved, and bytes a second."""
    started, moved = time.perf_counter(), 0
    while moved < most and (not moved or time.perf_counter() - started < seconds):
        moved += move(moved)
    return moved, moved / (time.perf_counter() - started)
