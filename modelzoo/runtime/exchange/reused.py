"""Buffers of exchanges on the CPU that are used again, block after block: fresh memory has to be cleared by the system first.

A rank of a sharded BERT-base asked the system for 2.6 GB a step, whose clearing was a quarter of its CPU time. What is kept here is
no more than one exchange needs anyway, and it is given back as soon as another size is asked for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["ReusedBuffers"]


class ReusedBuffers:
    """Buffers of one purpose; one that nobody holds any more is handed out again. Not for several threads."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, int]] = []
        self._last: tuple[int, torch.dtype] | None = None

    def empty(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory whose values are what they are; it is the caller's until the last tensor on it is gone.

        Args:
            size: Of the tensor.
            dtype: Of its values.
            device: Where; elsewhere than on the CPU torch's own allocator keeps memory.
        """
        shape = torch.Size(int(length) for length in size)
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        wanted = (shape.numel(), dtype)
        if wanted != self._last:  # blocks come one after the other; what comes once is not worth keeping
            self._kept.clear()
            self._last = wanted
            return torch.empty(shape, dtype=dtype)
        for buffer, users in self._kept:
            if _users(buffer) == users:
                return buffer.view(shape)
        buffer = torch.empty(shape.numel(), dtype=dtype)
        self._kept.append((buffer, _users(buffer)))
        return buffer.view(shape)


def _users(buffer: Tensor) -> int:
    """Return how many tensors share a buffer's memory, this one and the question included."""
    # of all ways to ask the only one that sees views; torch's CUDA graphs ask it too
    return int(torch._C._storage_Use_Count(buffer.untyped_storage()._cdata))
