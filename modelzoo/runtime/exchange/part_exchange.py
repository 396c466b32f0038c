"""Gathering parts and adding up wholes into parts: on the CPU from rank to rank, elsewhere by the backend's own collective.

gloo's all-gather copies everything twice and its reduce-scatter is a whole all-reduce of a copy. Sending each part straight to the
rank that needs it moves the bytes of a ring and nothing more; docs/benchmarks.md has both times. Every rank has to call these in
the same order, as with all collectives.
"""

from typing import cast

import torch.distributed as dist
from torch import Tensor

from modelzoo.runtime.exchange.reused import ReusedBuffers

__all__ = ["Transfers", "all_gather", "reduce_scatter"]

GATHER_TAG, REDUCE_TAG = 61, 62  # messages of one kind never meet a receiver of the other


class Transfers:
    """Sends and receives under way; `wait` as of `torch.distributed.Work`.

    Args:
        works: In the order in which they were started.
    """

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def add(self, work: dist.Work) -> None:
        """Wait for one more."""
        self._works.append(work)

    def wait(self) -> bool:
        """Wait until all are done, and raise what went wrong."""
        for work in self._works:
            work.wait()
        self._works.clear()
        return True


def all_gather(whole: Tensor, part: Tensor, group: dist.ProcessGroup, *, async_op: bool = False) -> Transfers | dist.Work | None:
    """Fill a tensor with all ranks' parts, in the order of the ranks.

    Args:
        whole: (ranks * N, ...) contiguous; filled.
        part: (N, ...) contiguous, of the same dtype; may be this rank's place in `whole`.
        group: The ranks.
        async_op: True returns at once; the result is there after `wait`.
    """
    if whole.device.type != "cpu":
        return cast(dist.Work | None, dist.all_gather_single(whole, part, group=group, async_op=async_op))
    running = Transfers([])
    if whole.numel():
        size, rank = group.size(), group.rank()
        places, mine = whole.view(-1).chunk(size), part.view(-1)
        for distance in range(1, size):
            running.add(_receive(places[rank - distance], rank - distance, group, GATHER_TAG))
            running.add(_send(mine, rank + distance, group, GATHER_TAG))
        if places[rank].data_ptr() != mine.data_ptr():
            places[rank].copy_(mine)
    if async_op:
        return running
    running.wait()
    return None


def reduce_scatter(
    part: Tensor,
    whole: Tensor,
    group: dist.ProcessGroup,
    *,
    op: object = dist.ReduceOp.SUM,
    buffers: ReusedBuffers | None = None,
) -> None:
    """Fill a tensor with this rank's part of the sum of all ranks' wholes.

    The order of the addition is fixed: this rank's own, then that of each rank before it.

    Args:
        part: (N, ...) contiguous; filled. May be this rank's place in `whole`.
        whole: (ranks * N, ...) contiguous, of the same dtype.
        group: The ranks.
        op: What is done with the values; all but the plain sum is left to the backend.
        buffers: Of what comes in; None takes new ones.
    """
    if whole.device.type != "cpu" or op != dist.ReduceOp.SUM:
        dist.reduce_scatter_single(part, whole, op=op, group=group)
        return
    if not whole.numel():
        return
    size, rank = group.size(), group.rank()
    places, total = whole.view(-1).chunk(size), part.view(-1)
    sends = [_send(places[(rank + distance) % size], rank + distance, group, REDUCE_TAG) for distance in range(1, size)]
    if total.data_ptr() != places[rank].data_ptr():
        total.copy_(places[rank])
    buffers = buffers or ReusedBuffers()
    # one comes in while the other is added
    coming = [buffers.empty(total.shape, dtype=total.dtype, device=total.device) for _ in range(min(2, size - 1))]
    receives = [_receive(buffer, rank - distance, group, REDUCE_TAG) for distance, buffer in enumerate(coming, start=1)]
    for distance in range(1, size):
        receives[distance - 1].wait()
        buffer = coming[(distance - 1) % 2]
        total.add_(buffer)
        if distance + 2 < size:
            receives.append(_receive(buffer, rank - distance - 2, group, REDUCE_TAG))
    Transfers(sends).wait()


def _send(values: Tensor, rank: int, group: dist.ProcessGroup, tag: int) -> dist.Work:
    """Start sending to a rank of the group, counted around its end."""
    return cast(dist.Work, dist.isend(values, group=group, group_dst=rank % group.size(), tag=tag))


def _receive(values: Tensor, rank: int, group: dist.ProcessGroup, tag: int) -> dist.Work:
    """Start receiving from a rank of the group, counted around its end."""
    return cast(dist.Work, dist.irecv(values, group=group, group_src=rank % group.size(), tag=tag))
