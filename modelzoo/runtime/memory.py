"""How much memory this process may take."""

import contextlib
import ctypes
import os
import resource
from pathlib import Path

import torch

from modelzoo.launch import place_of

__all__ = [
    "CONTEXT_BYTES",
    "SHARED_LARGE_BYTES",
    "free_bytes",
    "give_back_at_once",
    "keep_freed",
    "limit_device",
    "resident_bytes",
    "total_bytes",
    "trim_heap",
]

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
CONTEXT_BYTES = 600 * 2**20
"""What the driver takes of an accelerator for a process beside what torch allocates."""
LARGE_BYTES = 128 * 2**10
"""glibc's own threshold before it raises it."""
KEPT_BYTES = 32 * 2**20
"""The most to which glibc raises it by itself."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of the options, from its malloc.h."""
SHARED_LARGE_BYTES = 4 * 2**20
"""The same for ranks without a budget: gathered blocks and their gradients leave holes of all sizes in glibc's heap. A rank of a
sharded BERT took 833 MiB so instead of 1,105, in the same time; from 128 KiB on it were 747, and 20 % more time on one process."""


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device for this process: of an accelerator all, of the host's an equal part a local process.

    On the host a limit of the control group counts as well as what the machine has free.

    Args:
        device: "cpu" or "cuda".
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _available()
    free = free if available is None else available
    with contextlib.suppress(OSError, ValueError):  # no control group, or one without a limit
        free = min(free, int(CGROUP_LIMIT.read_text()) - int(CGROUP_USED.read_text()))
    return max(free, 0) // place_of(os.environ).local_size


def limit_device(device: torch.device, size_bytes: int) -> None:
    """Let this process allocate no more than so many bytes of an accelerator: beyond it torch raises instead of allocating.

    Args:
        device: "cuda" with an index; nothing is done for others.
        size_bytes: At most what it has, the driver's part included.
    """
    if device.type == "cuda":
        share = max(size_bytes - CONTEXT_BYTES, 0) / total_bytes(device)
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)


def _available() -> int | None:
    """Return what Linux says can be had without swapping, None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def resident_bytes() -> int:
    """Return the memory that this process has in use now (Linux; elsewhere its peak)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def total_bytes(device: torch.device | None = None) -> int:
    """Return the memory of this machine, or of an accelerator in it."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def give_back_at_once(from_bytes: int = LARGE_BYTES) -> bool:
    """Let the memory of every large tensor go back to the system when the tensor is gone, and return whether that can be had.

    glibc raises the size from which it does so up to 32 MiB, by what is freed, and keeps what is smaller for tensors of the same
    size. With batches of changing shapes a run whose activations took 20 MiB grew by 90 MiB, so no budget could hold.

    Args:
        from_bytes: Size of a large tensor.
    """
    return _mallopt(M_MMAP_THRESHOLD, from_bytes)


def keep_freed() -> bool:
    """Let glibc keep the memory of freed tensors for others, as it does by itself, and return whether that can be had."""
    return _mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and _mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES)


def trim_heap() -> None:
    """Give what glibc keeps free in its heap back to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _mallopt(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (AttributeError, OSError):  # another C library
        return False
