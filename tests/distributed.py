"""Tests on several processes: `run_distributed(fn, world_size)` starts them, gives each its environment, and shows who failed."""

import contextlib
import gc
import multiprocessing
import os
import random
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from modelzoo.training import ending

PRELOADED = [
    "pytest",
    "tokenizers",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "torch._dynamo",  # which fully_shard imports when it is first called, for two seconds
    "torch.distributed.fsdp",
    "transformers.modeling_utils",  # 1.3 s for each rank that compares with a model of theirs
    "modelzoo.training",
    "modelzoo.models.bert",
]
"""Imported once, by the server whose forks are the ranks: a fresh import of torch takes seconds."""


class Frozen:
    """Read in a new rank before all else, it takes what the server imported out of garbage collection.

    Otherwise the first collection, in the middle of an import, visits and so copies a quarter of a million objects in each rank.
    """

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return gc.freeze, ()


FROZEN = Frozen()


def run_distributed(fn: Callable[..., None], world_size: int, *args: Any, timeout_s: float = 90) -> None:
    """Run `fn(*args)` on `world_size` processes on gloo; all must end without an error.

    `fn` is a function at the top of a test module and calls `modelzoo.runtime.connect()` itself, as under torchrun.
    """
    failures = run_ranks(fn, world_size, *args, timeout_s=timeout_s)
    if failures:
        raise AssertionError("\n".join(f"--- rank {rank}\n{text}" for rank, text in sorted(failures.items())))


def run_ranks(fn: Callable[..., None], world_size: int, *args: Any, timeout_s: float = 90) -> dict[int, str]:
    """Run `fn(*args)` on `world_size` processes and return the traceback of each rank that failed."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=enter, args=(FROZEN, fn, rank, world_size, port, folder, args), daemon=True)
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


def enter(frozen: None, fn: Callable[..., None], rank: int, world_size: int, port: int, folder: str, args: tuple[Any, ...]) -> None:
    """Be rank `rank`: set the environment as torchrun does, and call `fn(*args)`."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        CUDA_VISIBLE_DEVICES="",
    )
    torch.set_num_threads(1)
    ending.has_matplotlib = lambda: False  # no rank's picture is looked at, and it takes a third of a tiny run
    try:
        fn(*args)
    except BaseException:
        (Path(folder) / f"{rank}.txt").write_text(traceback.format_exc())
        raise SystemExit(1) from None


def free_port() -> int:
    """Return a port below those that the system gives to whoever asks for any, so that nobody takes it before rank 0 does."""
    while True:
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", random.SystemRandom().randrange(10_000, 32_000)))
            return int(found.getsockname()[1])
