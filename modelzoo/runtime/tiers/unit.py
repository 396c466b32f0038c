"""A block's values as the tiers see them: for each kind a region, in memory or in a file, where its parameters lie in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from modelzoo.runtime.tiers.direct_file import ALIGNMENT, Buffer, DirectFile
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.traffic import DiskTraffic

__all__ = [
    "KINDS",
    "DeviceRegion",
    "FileRegion",
    "Home",
    "Kind",
    "MemoryRegion",
    "Place",
    "Region",
    "Unit",
    "aligned",
    "lay_down",
    "open_regions",
]

Kind = Literal["parameters", "exp_avg", "exp_avg_sq", "gradients"]
Home = Literal["memory", "host", "disk"]
"""The memory that the model computes in, the host's below an accelerator, or the disk."""
KINDS: tuple[Kind, ...] = ("parameters", "exp_avg", "exp_avg_sq", "gradients")
ELEMENTS = ALIGNMENT // 4
"""float32 values to which every parameter's place is aligned."""


def aligned(elements: int) -> int:
    """Return a number of float32 values rounded up to whole pages."""
    return -(-elements // ELEMENTS) * ELEMENTS


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter lies in every region of its unit."""

    parameter: nn.Parameter
    start: int
    """Values before it; whole pages."""
    numel: int
    """Values of this rank's shard."""
    padded: tuple[int, ...]
    """Shape of the shard with the rows that make all ranks' equal."""


class Region(Protocol):
    """Values of one kind of one unit."""

    def load(self, start: int, stop: int, into: Buffer) -> Tensor:
        """Return values `start` to `stop`, flat; they may lie in `into`."""

    def store(self, start: int, values: Tensor, source: Buffer) -> None:
        """Keep values that `load` returned and that were changed."""


class MemoryRegion:
    """A region in the memory where its unit is updated: what is loaded is the region itself.

    Args:
        values: Flat float32.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def load(self, start: int, stop: int, into: Buffer) -> Tensor:
        """Return a view."""
        return self.values[start:stop]

    def store(self, start: int, values: Tensor, source: Buffer) -> None:
        """Keep values, unless they are the region's own."""
        target = self.values[start : start + len(values)]
        if target.data_ptr() != values.data_ptr():
            target.copy_(values)


class DeviceRegion:
    """A region on an accelerator whose unit is updated on the host: copied there and back.

    Args:
        values: Flat float32.
        link: To the device.
    """

    def __init__(self, values: Tensor, link: Link) -> None:
        self.values, self._link = values, link

    def load(self, start: int, stop: int, into: Buffer) -> Tensor:
        """Return a copy in the buffer."""
        found = into.values[: stop - start]
        self._link.to_host(found, self.values[start:stop])
        return found

    def store(self, start: int, values: Tensor, source: Buffer) -> None:
        """Copy values back."""
        self._link.to_device(self.values[start : start + len(values)], values)


class FileRegion:
    """A region in a file.

    Args:
        file: Of the unit.
        offset: First byte in it.
        kind: Of its values.
        traffic: Where its bytes are counted.
    """

    def __init__(self, file: DirectFile, offset: int, kind: Kind, traffic: DiskTraffic) -> None:
        self._file, self._offset, self._kind, self._traffic = file, offset, kind, traffic

    def load(self, start: int, stop: int, into: Buffer) -> Tensor:
        """Read whole pages into the buffer and return the values; `start` is at a page."""
        size = 4 * aligned(stop - start)
        self._file.read(self._offset + 4 * start, into.view[:size], self._kind)
        self._traffic.read(self._kind, size)
        return into.values[: stop - start]

    def store(self, start: int, values: Tensor, source: Buffer) -> None:
        """Write whole pages from the buffer that holds the values."""
        size = 4 * aligned(len(values))
        if values.data_ptr() != source.values.data_ptr():
            source.values[: len(values)].copy_(values)
        self._file.write(self._offset + 4 * start, source.view[:size], self._kind)
        self._traffic.written(self._kind, size)


CPU = Link(torch.device("cpu"))


@dataclass(slots=True)
class Unit:
    """A block, or what is in no block."""

    name: str
    module: nn.Module
    places: tuple[Place, ...]
    elements: int
    """Values of a region, page ends included."""
    homes: Mapping[Kind, Home]
    link: Link = CPU
    is_block: bool = True
    """False for what is in no block."""
    regions: dict[Kind, Region] = field(default_factory=dict)
    """Kinds that are not where torch has them; parameters and gradients whose home is memory have none."""
    stored_gradients: set[int] = field(default_factory=set)
    """Numbers of the places whose gradient is in its region."""
    gradient_factors: dict[int, float] = field(default_factory=dict)
    """What each of them is to be multiplied by (clipping)."""

    def region(self, kind: Kind) -> Region:
        """Return a region; moments of what was frozen when the tiers were made get memory when they are first needed."""
        if kind not in self.regions and kind != "parameters":
            self._make(kind)
        return self.regions[kind]

    def _make(self, kind: Kind) -> None:
        """Make a region that is not on disk."""
        if self.homes[kind] == "host":
            is_pinned = kind in ("parameters", "gradients")
            self.regions[kind] = MemoryRegion(self.link.on_host(self.elements, is_pinned=is_pinned))
        elif self.is_mixed:
            self.regions[kind] = DeviceRegion(self.link.on_device(self.elements), self.link)
        else:
            self.regions[kind] = MemoryRegion(self.link.on_device(self.elements))

    def region_bytes(self, home: Home, kinds: Sequence[Kind] = KINDS) -> int:
        """Return the memory of its regions of some kinds in a tier."""
        regions = ((kind, region) for kind, region in self.regions.items() if isinstance(region, MemoryRegion | DeviceRegion))
        return sum(region.values.nbytes for kind, region in regions if self.homes[kind] == home and kind in kinds)

    @property
    def is_streamed(self) -> bool:
        """Whether its parameters come from a lower tier."""
        return self.homes["parameters"] != "memory"

    @property
    def is_mixed(self) -> bool:
        """Whether it is updated in another memory than the model computes in: on the host, below an accelerator."""
        return self.link.is_apart and any(home != "memory" for home in self.homes.values())


def lay_down(parameters: Sequence[nn.Parameter], shapes: Sequence[tuple[int, ...]], numels: Sequence[int]) -> tuple[Place, ...]:
    """Return a place for each parameter, one after the other.

    Args:
        parameters: Of a unit.
        shapes: Padded shape of each one's shard.
        numels: Values of each one's shard.
    """
    places, start = [], 0
    for parameter, shape, numel in zip(parameters, shapes, numels, strict=True):
        places.append(Place(parameter, start, numel, shape))
        start += aligned(max(torch.Size(shape).numel(), 1))
    return tuple(places)


def open_regions(unit: Unit, path: Path, traffic: DiskTraffic) -> DirectFile | None:
    """Make the regions of a unit; the file is None where nothing of it is on disk.

    Raises:
        SaveError: The file cannot be made, or there is no room for it.
    """
    on_disk = [kind for kind in KINDS if unit.homes[kind] == "disk"]
    file = DirectFile(path, 4 * unit.elements * len(on_disk), unit.name) if on_disk else None
    for number, kind in enumerate(on_disk):
        assert file is not None
        unit.regions[kind] = FileRegion(file, 4 * unit.elements * number, kind, traffic)
    is_trained = any(place.parameter.requires_grad for place in unit.places)
    for kind in ("exp_avg", "exp_avg_sq") if is_trained else ():
        unit.region(kind)
    if unit.homes["parameters"] == "host":
        unit._make("parameters")
    return file
