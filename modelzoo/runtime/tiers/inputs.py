"""Inputs of blocks that are computed again, on disk between forward and backward: what recomputation leaves in memory.

With `recompute` a block keeps its input alone (torchtune and ALST send the same tensors to the next tier). It is copied into one of
a few buffers, written while the block computes, and read again in the order of the backward, ahead of its use. The last ones never
leave their buffers. Values come back as they were, to the last bit.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor

from modelzoo.runtime.tiers.direct_file import ALIGNMENT, Buffer, DirectFile
from modelzoo.runtime.tiers.traffic import DiskTraffic
from modelzoo.runtime.tiers.worker import Worker

__all__ = ["INPUT_BUFFERS", "SMALLEST_BYTES", "Inputs"]

INPUT_BUFFERS = 3
"""One that the backward reads, two on their way."""
SMALLEST_BYTES = 64 * 2**10
"""A tensor that is smaller stays in memory: writing it takes longer than it saves."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Kept:
    """An input that is away; autograd holds it in the tensor's place."""

    shape: torch.Size
    dtype: torch.dtype
    size_bytes: int
    place: int
    """Number of its file."""
    before: "Callable[[], _Kept | None]"
    """The one that the backward needs next, while autograd holds it."""


def _nothing() -> None:
    return None


@dataclass(slots=True, eq=False)
class _Stage:
    """A buffer, and the input in it."""

    buffer: Buffer
    _held: Callable[[], _Kept | None] = _nothing
    busy: Future[None] | None = None
    is_written: bool = True
    last_use: int = 0

    @property
    def holds(self) -> _Kept | None:
        """The input, while autograd holds it."""
        return self._held()

    def hold(self, kept: _Kept, *, is_written: bool) -> None:
        """Note what was put into the buffer, and whether its file has it too."""
        self._held, self.is_written = ref(kept), is_written


class Inputs:
    """Where blocks' inputs are between forward and backward. Not for two backwards at once.

    Args:
        path_of: Gives the path of a file by its name.
        traffic: Where bytes are counted.
    """

    def __init__(self, path_of: Callable[[str], Path], traffic: DiskTraffic) -> None:
        self._path_of, self._traffic = path_of, traffic
        self.worker = Worker(threads=1)
        self._files: list[DirectFile | None] = []
        self._free: list[int] = []
        self._stages: list[_Stage] = []
        self._last: Callable[[], _Kept | None] = _nothing
        self._clock = self._count = self._expected = 0
        self.on_disk_bytes = 0
        """Of inputs that are away now."""

    def hooks(self, stream: Tensor) -> AbstractContextManager[Any]:
        """Return the context in which a block's inputs are saved for its recomputation.

        Args:
            stream: The one that goes to the disk; everything else (masks, phases, an encoder's output) is used by many blocks and
                stays.
        """
        size = stream.numel() * stream.element_size()
        if size < SMALLEST_BYTES or stream.untyped_storage().nbytes() > 2 * size:
            return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)
        # autograd keeps both functions, so neither may hold the tensor
        address, shape = stream.data_ptr(), stream.shape
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._put(tensor) if tensor.data_ptr() == address and tensor.shape == shape else tensor,
            lambda packed: self._get(packed) if isinstance(packed, _Kept) else packed,
        )

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers."""
        return sum(stage.buffer.size_bytes for stage in self._stages)

    def close(self) -> None:
        """Stop the thread and remove the files."""
        self.worker.close()
        self._stages.clear()
        for file in self._files:
            if file is not None:
                file.close()
        self._files.clear()

    # -- forward ---------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _put(self, tensor: Tensor) -> _Kept:
        """Take a copy of an input and let it be written, unless the backward comes soon enough to find it in its buffer."""
        size = tensor.numel() * tensor.element_size()
        if self._last() is None:  # the first one of a forward
            self._expected, self._count = max(self._expected, self._count), 0
        self._count += 1
        kept = _Kept(tensor.shape, tensor.dtype, size, self._take_place(size), self._last)
        stage = self._stage(size)
        stage.buffer.values.view(torch.uint8)[:size].copy_(tensor.contiguous().view(-1).view(torch.uint8))
        stage.hold(kept, is_written=False)
        self._last = ref(kept)
        if self._count <= self._expected - (INPUT_BUFFERS - 1) or not self._expected:
            self._write(stage)
        self.on_disk_bytes += size
        finalize(kept, self._forget, kept.place, size)
        return kept

    def _take_place(self, size: int) -> int:
        """Return the number of a file with room for an input."""
        if not self._free:
            self._files.append(None)
            self._free.append(len(self._files) - 1)
        place = self._free.pop()
        file, room = self._files[place], -(-size // ALIGNMENT) * ALIGNMENT
        if file is None or file.size_bytes < room:
            if file is not None:
                for stage in self._stages:  # one of them may still be written to it
                    if stage.busy is not None:
                        self.worker.wait(stage.busy)
                file.close()
            self._files[place] = None
            self._files[place] = DirectFile(self._path_of(f"inputs-{place}"), room, f"the input of block {place}")
        return place

    def _stage(self, size: int) -> _Stage:
        """Return a buffer that is free, the one that was used longest ago; what only it holds is written first."""
        elements = -(-size // ALIGNMENT) * (ALIGNMENT // 4)
        if len(self._stages) < INPUT_BUFFERS:
            stage = _Stage(Buffer(elements))
            self._stages.append(stage)
        else:
            stage = min(self._stages, key=lambda each: each.last_use)
        if not stage.is_written and stage.holds is not None:
            self._write(stage)
        if stage.busy is not None:
            self.worker.wait(stage.busy)
        if stage.buffer.size_bytes < 4 * elements:
            stage.buffer = Buffer(elements)
        stage._held, stage.busy, stage.is_written = _nothing, None, True
        self._clock += 1
        stage.last_use = self._clock
        return stage

    def _write(self, stage: _Stage) -> None:
        kept = stage.holds
        assert kept is not None
        stage.is_written = True
        stage.busy = self.worker.submit(self._move, "write", self._file(kept), stage.buffer, kept.size_bytes)

    # -- backward --------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _get(self, kept: _Kept) -> Tensor:
        """Return an input in memory of its own, and start on the one that is needed next."""
        stage = self._find(kept) or self._read(kept)
        if stage.busy is not None:
            self.worker.wait(stage.busy)
        self._clock += 1
        stage.last_use = self._clock
        found = torch.empty(kept.shape, dtype=kept.dtype)
        found.view(-1).view(torch.uint8).copy_(stage.buffer.values.view(torch.uint8)[: kept.size_bytes])
        ahead = kept.before()
        for _ in range(INPUT_BUFFERS - 1):
            if ahead is None:
                break
            if self._find(ahead) is None:
                self._read(ahead, after=kept)
            ahead = ahead.before()
        return found

    def _find(self, kept: _Kept) -> _Stage | None:
        return next((stage for stage in self._stages if stage.holds is kept), None)

    def _read(self, kept: _Kept, after: _Kept | None = None) -> _Stage:
        """Let an input be read into a buffer; what was used in the backward goes first, then what is needed last."""
        for stage in self._stages:
            if stage.holds is None or stage.holds is after:
                stage.last_use = -1 if stage.holds is None else 0
        stage = self._stage(kept.size_bytes)
        stage.hold(kept, is_written=True)
        stage.busy = self.worker.submit(self._move, "read", self._file(kept), stage.buffer, kept.size_bytes)
        return stage

    def _file(self, kept: _Kept) -> DirectFile:
        file = self._files[kept.place]
        assert file is not None
        return file

    def _move(self, doing: str, file: DirectFile, buffer: Buffer, size: int) -> None:
        """Read or write whole pages. In the thread."""
        room = -(-size // ALIGNMENT) * ALIGNMENT
        if doing == "write":
            file.write(0, buffer.view[:room], "inputs")
            self._traffic.written("inputs", room)
        else:
            file.read(0, buffer.view[:room], "inputs")
            self._traffic.read("inputs", room)

    def _forget(self, place: int, size: int) -> None:
        self.on_disk_bytes -= size
        self._free.append(place)


def _as_it_is(value: Any) -> Any:
    return value
