"""Sharded tensors (DTensors): which box of the whole a rank holds, and the whole again.

A tensor may be cut twice: by a tensor axis, over output features, input features or the vocabulary, and by a shard axis over the
rows that are left. Sizes that do not divide are allowed: parts are cut as `torch.chunk` cuts, the last ones shorter or empty.
Neither this module nor a check with it imports torch's DTensor where no sharded tensor can exist.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "Away",
    "full_tensor",
    "held",
    "is_away",
    "is_sharded",
    "local_box",
    "local_part",
    "local_values",
    "padded_shape",
    "stored_bytes",
    "write_local",
    "write_whole",
]


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether a tensor is a DTensor; where none can exist, their module is not imported for the question."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


class Away(Protocol):
    """Where a rank's part of a tensor is when it is not in the tensor's own memory: the attribute `away` of the local tensor."""

    def read(self) -> Tensor:
        """Return the values, in memory of their own."""

    def write(self, values: Tensor) -> None:
        """Replace the values."""


def local_values(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, or the tensor itself, without history.

    It shares the tensor's memory, unless its values are away (on disk): then it is a copy, for reading.
    """
    local = held(tensor)
    away: Away | None = getattr(local, "away", None)
    return local.detach() if away is None else away.read()


def is_away(tensor: Tensor) -> bool:
    """Return whether a tensor's values are not in its own memory."""
    return getattr(held(tensor), "away", None) is not None


def write_local(tensor: Tensor, values: Tensor) -> None:
    """Replace this rank's part of a sharded tensor, or the tensor's values, wherever they are."""
    local = held(tensor)
    away: Away | None = getattr(local, "away", None)
    if away is not None:
        away.write(values)
    else:
        with torch.no_grad():
            local.copy_(values)


def write_whole(tensor: Tensor, whole: Tensor) -> None:
    """Replace a tensor's values by those of a whole one: of a sharded tensor this rank's part, wherever it lives."""
    write_local(tensor, local_part(tensor, whole) if is_sharded(tensor) else whole)


def held(tensor: Tensor) -> Tensor:
    """Return the very tensor that holds this rank's part: `to_local` returns a new view of it, which lacks its attributes."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of this rank's part as it is stored: of a quantized tensor, those of its parts."""
    own: Any = held(tensor)
    if not hasattr(own, "__tensor_flatten__"):
        return int(own.nbytes)
    names, _ = own.__tensor_flatten__()
    return sum(stored_bytes(getattr(own, name)) for name in names)


def local_box(tensor: "DTensor") -> tuple[slice, ...]:
    """Return which box of the whole tensor this rank holds, one slice a dimension.

    Raises:
        ValueError: A placement that is neither a shard nor a replica.
    """
    coordinates = [tensor.device_mesh.get_local_rank(axis) for axis in range(tensor.device_mesh.ndim)]
    return _box(tensor, coordinates, _cut_order(tensor))


def local_part(tensor: "DTensor", whole: Tensor) -> Tensor:
    """Return this rank's box of a whole tensor of the same shape, as a view."""
    return whole[local_box(tensor)]


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor, or the tensor itself, a copy if it is away. Collective over the ranks that share it.

    Unlike DTensor's own method this is right for sizes that do not divide over two axes.
    """
    if not is_sharded(tensor):
        return local_values(tensor) if is_away(tensor) else tensor
    with torch.no_grad():
        mesh, local = tensor.device_mesh, local_values(tensor)
        coordinates = [mesh.get_local_rank(axis) for axis in range(mesh.ndim)]
        cuts = _cut_order(tensor)
        while cuts:
            axis = cuts[-1]
            dim = tensor.placements[axis].dim  # type: ignore[attr-defined]  # a shard has one
            places = [[*coordinates[:axis], place, *coordinates[axis + 1 :]] for place in range(mesh.size(axis))]
            boxes = [_box(tensor, place, cuts) for place in places]
            local = _gather(local, dim, [box[dim].stop - box[dim].start for box in boxes], mesh.get_group(axis))
            cuts.pop()
        return local


def padded_shape(tensor: "DTensor", axis: str) -> tuple[int, ...]:
    """Return the shape of the largest part along a mesh axis: `fully_shard` pads every rank's rows to it.

    Args:
        tensor: Cut by that axis, and maybe by others.
        axis: Name of the axis.
    """
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or ()
    places = [0 if name == axis else mesh.get_local_rank(place) for place, name in enumerate(names)]
    return tuple(part.stop - part.start for part in _box(tensor, places, _cut_order(tensor)))


def _gather(local: Tensor, dim: int, sizes: Sequence[int], group: torch.distributed.ProcessGroup) -> Tensor:
    """Join the parts of all ranks of a group along a dimension, of `sizes` each."""
    import torch.distributed as dist

    if len(sizes) == 1 or not any(sizes):
        return local
    rows = local.movedim(dim, 0).contiguous()
    widest = max(sizes)
    padded = rows.new_zeros(widest, *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = padded.new_empty(len(sizes) * widest, *rows.shape[1:])
    dist.all_gather_single(gathered, padded, group=group)
    parts = [part[:size] for part, size in zip(gathered.split(widest), sizes, strict=True)]
    return torch.cat(parts).movedim(0, dim)


def _cut_order(tensor: "DTensor") -> list[int]:
    """Return the mesh axes that cut the tensor, in the order of the cuts: a shard axis cuts what a tensor axis has left.

    Raises:
        ValueError: A placement that is neither a shard nor a replica.
    """
    axes = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    for axis in axes:
        if not hasattr(tensor.placements[axis], "dim"):
            raise ValueError(f"placements {tensor.placements}: expected shards and replicas")
    # a shard axis that cuts rows which a later axis has cut already carries a split factor
    return sorted(axes, key=lambda axis: (hasattr(tensor.placements[axis], "split_factor"), axis))


def _box(tensor: "DTensor", coordinates: Sequence[int], cuts: Sequence[int]) -> tuple[slice, ...]:
    """Return the box of the rank at these coordinates of the mesh, once these of its axes have cut."""
    box = [slice(0, size) for size in tensor.shape]
    for axis in cuts:
        dim = tensor.placements[axis].dim  # type: ignore[attr-defined]  # a shard has one
        size = box[dim].stop - box[dim].start
        chunk = -(-size // tensor.device_mesh.size(axis))
        start = min(chunk * coordinates[axis], size)
        box[dim] = slice(box[dim].start + start, box[dim].start + min(start + chunk, size))
    return tuple(box)
