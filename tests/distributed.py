"""Tests on several processes: `run_distributed(fn, world_size)` starts them, gives each its environment, and shows who failed."""

import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PRELOADED = [
    "pytest",
    "tokenizers",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "torch._dynamo",  # which fully_shard imports when it is first called, for two seconds
    "torch.distributed.fsdp",
    "modelzoo.training",
    "modelzoo.models.bert",
]
"""Imported once, by the server whose forks are the ranks: a fresh import of torch takes seconds."""


def run_distributed(fn: Callable[..., None], world_size: int, *args: Any, timeout_s: float = 90) -> None:
    """Run `fn(*args)` on `world_size` processes on gloo; all must end without an error.

    `fn` is a function at the top of a test module and calls `modelzoo.runtime.connect()` itself, as under torchrun.
    """
    failures = run_ranks(fn, world_size, *args, timeout_s=timeout_s)
    if failures:
        raise AssertionError("\n".join(f"--- rank {rank}\n{text}" for rank, text in sorted(failures.items())))


def run_ranks(fn: Callable[..., None], world_size: int, *args: Any, timeout_s: float = 90) -> dict[int, str]:
    """Run `fn(*args)` on `world_size` processes and return the traceback of each rank that failed."""
    port = _free_port()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_enter, args=(fn, rank, world_size, port, folder, args), daemon=True)
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + timeout_s
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        failures = {}
        for rank, process in enumerate(processes):
            report = Path(folder) / f"{rank}.txt"
            if process.is_alive():
                process.kill()
                failures[rank] = f"still running after {timeout_s} s"
            elif process.exitcode:
                failures[rank] = report.read_text() if report.exists() else f"exit code {process.exitcode}"
        return failures


def _enter(fn: Callable[..., None], rank: int, world_size: int, port: int, folder: str, args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        CUDA_VISIBLE_DEVICES="",
    )
    torch.set_num_threads(1)
    try:
        fn(*args)
    except BaseException:
        (Path(folder) / f"{rank}.txt").write_text(traceback.format_exc())
        raise SystemExit(1) from None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
