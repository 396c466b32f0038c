"""The way between an accelerator's memory and the host's: pinned memory, copies beside the computing, and the bytes they moved.

Copies are made by threads, each on a stream of its own, that wait until they are done: the device computes meanwhile, and what a
thread has finished can be used on any stream. On a CPU there is one memory and nothing to copy; `is_apart=True` keeps two there, so
that everything but streams, events and pinning can be tried without an accelerator.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from modelzoo.runtime.tiers.direct_file import Buffer

__all__ = ["Link"]

log = logging.getLogger(__name__)

REGISTER_PORTABLE = 1
"""CUDA's cudaHostRegisterPortable: pinned for every context."""


class Link:
    """Between the memory that the model computes in and that of the host.

    Args:
        device: Where the model computes.
        is_apart: Whether these are two memories; None is what the device says.
    """

    def __init__(self, device: torch.device, *, is_apart: bool | None = None) -> None:
        self.device = device
        self.is_apart = device.type != "cpu" if is_apart is None else is_apart
        self._backend: Any = torch.get_device_module(device) if device.type != "cpu" else None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._pinned: list[Tensor] = []
        self._can_pin = device.type == "cuda"
        self.to_device_bytes = 0
        self.to_host_bytes = 0

    # -- memory ----------------------------------------------------------------------------------------------------------------

    def on_device(self, elements: int) -> Tensor:
        """Return float32 zeros in the device's memory.

        Args:
            elements: How many.
        """
        return torch.zeros(elements, device=self.device)

    def on_host(self, elements: int, *, is_pinned: bool) -> Tensor:
        """Return float32 zeros in the host's memory.

        Args:
            elements: How many.
            is_pinned: Whether the device copies from or to it; pinning everything would take minutes on a large host.
        """
        if not self.is_apart:
            return torch.zeros(elements)
        values = Buffer(-(-elements // 1024) * 1024).values[:elements]
        if is_pinned:
            self.pin(values)
        return values

    def pin(self, values: Tensor) -> None:
        """Let the device copy from and to host memory directly, until `close`; slower copies where the system refuses.

        Args:
            values: Flat, of a mapping of their own.
        """
        if not self._can_pin:
            return
        status = int(torch.cuda.cudart().cudaHostRegister(values.data_ptr(), values.nbytes, REGISTER_PORTABLE))
        if status == 0:
            self._pinned.append(values)
        else:
            self._can_pin = False
            log.warning("memory: the system pins no more than %d MiB (CUDA error %d); copies are slower", self.pinned_mib, status)

    @property
    def pinned_mib(self) -> int:
        """Pinned memory."""
        return sum(values.nbytes for values in self._pinned) >> 20

    def close(self) -> None:
        """Let go of pinned memory; nothing may be copied any more."""
        for values in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(values.data_ptr())
        self._pinned.clear()

    @property
    def allocated_bytes(self) -> int | None:
        """What tensors take of the device's memory now; None where torch does not count it."""
        return None if self._backend is None else int(self._backend.memory_allocated(self.device))

    @property
    def moved_bytes(self) -> dict[str, int]:
        """Bytes that were copied, by direction; empty where there is one memory."""
        return {"host>device": self.to_device_bytes, "device>host": self.to_host_bytes} if self.is_apart else {}

    # -- copies ----------------------------------------------------------------------------------------------------------------

    def mark(self) -> Any:
        """Return an event after everything that the current stream was given; None where a call that returns has computed."""
        return None if self._backend is None else self._backend.current_stream(self.device).record_event()

    @contextmanager
    def beside(self, after: Any = None) -> Iterator[None]:
        """Give what is inside to this thread's own stream; when the context ends it is done.

        Args:
            after: An event that it has to wait for.
        """
        if self._backend is None:
            yield
            return
        if not hasattr(self._own, "stream"):
            self._own.stream = self._backend.Stream(device=self.device)
        stream = self._own.stream
        with self._backend.stream(stream):
            if after is not None:
                stream.wait_event(after)
            yield
            stream.synchronize()

    def to_device(self, into: Tensor, values: Tensor, after: Any = None) -> None:
        """Copy from the host to the device, and wait until it is done.

        Args:
            into: On the device.
            values: On the host, as many.
            after: An event before which `into` is still used.
        """
        with self.beside(after):
            into.copy_(values, non_blocking=True)
        with self._lock:
            self.to_device_bytes += values.nbytes

    def to_host(self, into: Tensor, values: Tensor, after: Any = None) -> None:
        """Copy from the device to the host, and wait until it is done.

        Args:
            into: On the host.
            values: On the device, as many.
            after: An event from which on they are there.
        """
        with self.beside(after):
            into.copy_(values, non_blocking=True)
        with self._lock:
            self.to_host_bytes += values.nbytes
