"""Settings of the process itself during a run: threads and determinism."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modelzoo.config import RunSettings
from modelzoo.launch import place_of

__all__ = ["runtime_options"]


@contextmanager
def runtime_options(settings: RunSettings) -> Iterator[None]:
    """Set threads and determinism for the run, and put back what was set before."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    local_processes = place_of(os.environ).local_size
    wanted = settings.runtime.threads
    if wanted is None and local_processes > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        wanted = max(cores // local_processes, 1)
    if wanted is not None:
        torch.set_num_threads(wanted)
    if settings.runtime.deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
