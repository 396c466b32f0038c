"""The exchanges of `fully_shard`, counted: the same collectives as torch's own, with their bytes and seconds noted."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from modelzoo.runtime.axes import REPLICATE
from modelzoo.runtime.exchange.part_exchange import Transfers, all_gather, reduce_scatter
from modelzoo.runtime.exchange.reused import ReusedBuffers
from modelzoo.runtime.exchange.traffic import NAMES, Traffic
from modelzoo.runtime.lost import in_collective

__all__ = ["count_traffic"]


def count_traffic(model: nn.Module, mesh: DeviceMesh, traffic: Traffic) -> None:
    """Let every unit of a sharded model note what it exchanges.

    Args:
        model: After `fully_shard`.
        mesh: Its grid.
        traffic: Where it is noted.
    """
    groups = mesh[REPLICATE].size()
    gathered, reduced, coming = ReusedBuffers(), ReusedBuffers(), ReusedBuffers()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # the classes that torch 2.13 annotates here have no public name; it asks for no more than these methods
            module.set_custom_all_gather(_Gather(traffic, gathered))  # type: ignore[arg-type]  # see above
            scatter = _Scatter(traffic, reduced, coming)
            module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]  # see above
            if groups > 1:
                module.set_all_reduce_hook(_replicated(traffic, groups, scatter))


class _Waited:
    """A running exchange whose waiting time is noted."""

    def __init__(self, work: Transfers | dist.Work, traffic: Traffic, kind: str) -> None:
        self._work, self._traffic, self._kind = work, traffic, kind

    def wait(self, *args: Any) -> Any:
        """Wait for it."""
        started = time.perf_counter()
        try:
            with in_collective(NAMES[self._kind]):
                return self._work.wait(*args)
        finally:
            self._traffic.waited(self._kind, time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Counted:
    kind: str

    def __init__(self, traffic: Traffic, buffers: ReusedBuffers) -> None:
        self._traffic, self._buffers = traffic, buffers

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._buffers.empty(size, dtype=dtype, device=device)

    def _run(self, whole: Tensor, group: dist.ProcessGroup, start: Callable[[], Transfers | dist.Work | None]) -> Any:
        size = group.size()
        if self.kind == "reduce" and size == 1:
            return start()
        started = time.perf_counter()
        with in_collective(NAMES[self.kind]):
            work = start()
        self._traffic.add(self.kind, whole.nbytes * (size - 1) // size, time.perf_counter() - started)
        return None if work is None else _Waited(work, self._traffic, self.kind)


class _Gather(_Counted):
    kind = "gather"

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False) -> Any:
        return self._run(
            output_tensor,
            group,
            lambda: all_gather(output_tensor, input_tensor, group, async_op=async_op),
        )


class _Scatter(_Counted):
    kind = "reduce"
    last_s = 0.0
    """When it was last done, or its memory was asked for where a shard is the whole; the sum between groups comes right after."""

    def __init__(self, traffic: Traffic, buffers: ReusedBuffers, coming: ReusedBuffers) -> None:
        super().__init__(traffic, buffers)
        self._coming = coming
        self._is_result = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for what is sent and, asked again, for the result, which stays with the gradients."""
        self.last_s = time.perf_counter()
        is_result, self._is_result = self._is_result, not self._is_result
        if is_result:
            return torch.empty(*size, dtype=dtype, device=device)
        return super().allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        work = self._run(
            input_tensor, group, lambda: reduce_scatter(output_tensor, input_tensor, group, op=op, buffers=self._coming)
        )
        self.last_s = time.perf_counter()
        return work


def _replicated(traffic: Traffic, groups: int, scatter: _Scatter) -> Callable[[Tensor], None]:
    """Return what is called after the sum between groups, which `fully_shard` does by itself: it is timed from the scatter on."""

    def note(total: Tensor) -> None:
        traffic.add("replicate", 2 * total.nbytes * (groups - 1) // groups, time.perf_counter() - scatter.last_s)

    return note
