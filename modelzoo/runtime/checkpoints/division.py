"""Who writes what in a save: every rank the parts that it holds, and what several hold alike is written once.

The plan is computed on every rank from what all ranks hold, so all have the same one, and no tensor is gathered.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from modelzoo.errors import RankError, SaveError
from modelzoo.runtime.agreement import mark_agreed, raise_together
from modelzoo.runtime.checkpoints.manifest import Part, StoredTensor
from modelzoo.runtime.checkpoints.tensors import DTYPE_CODES
from modelzoo.runtime.process import World
from modelzoo.sharded import is_sharded, local_box

__all__ = ["OF_EACH_RANK", "Held", "Kinds", "SavePlan", "file_name", "plan_save"]

OF_EACH_RANK = "random"
"""The kind whose tensors are those of one rank each; all other kinds have the same names on every rank."""

Kinds = Mapping[str, Mapping[str, Tensor]]
"""Tensors by kind and name, sharded ones as they are."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one rank holds of a tensor: a box of the whole."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: str
    item_bytes: int
    offset: tuple[int, ...]
    """Where the box begins, one number a dimension."""
    size: tuple[int, ...]
    """Of the box."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the box."""
        return math.prod(self.size) * self.item_bytes


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The same on every rank."""

    tensors: Mapping[str, StoredTensor]
    """By `kind/name`, with the file and the place of every part."""
    own: Mapping[str, tuple[str, ...]]
    """By kind, the names of the tensors of which this rank writes its part."""
    total_bytes: int
    """Of all parts of all ranks."""


def file_name(kind: str, rank: int, world_size: int) -> str:
    """Return the name of a rank's file of a kind: `model.safetensors` on one process, `model-0-of-2.safetensors` on two."""
    return f"{kind}.safetensors" if world_size == 1 else f"{kind}-{rank}-of-{world_size}.safetensors"


def plan_save(world: World, facts: Mapping[str, str], kinds: Kinds) -> SavePlan:
    """Tell all ranks what this one holds, and decide who writes what. Collective; nothing is written.

    Of the ranks that hold a box alike, the one with the least to write so far takes it, the lowest among equals.

    Args:
        world: The processes.
        facts: What the ranks must agree on (the step, the identity), a name and a text each.
        kinds: This rank's tensors.

    Raises:
        RankError: The ranks differ in a fact, in the tensors or their shapes or dtypes; or no rank holds a part of one.
        SaveError: A tensor has a dtype that cannot be stored.
    """
    held: dict[str, Held] = {}
    error: Exception | None = None
    try:
        held = {f"{kind}/{name}": _held(kind, name, tensor) for kind, some in kinds.items() for name, tensor in some.items()}
    except SaveError as refused:
        error = refused
    raise_together(world, error)
    told = world.gather((dict(facts), held))
    problem = _difference(told)
    if problem is None:
        tensors, owners, total_bytes = _assign([some for _, some in told])
        problem = next((text for name, stored in tensors.items() if (text := _gap(name, stored))), None)
    if problem is not None:
        raise mark_agreed(world, RankError(problem))
    own = {kind: tuple(name for name in some if owners.get((f"{kind}/{name}", world.rank))) for kind, some in kinds.items()}
    return SavePlan(tensors, own, total_bytes)


def _held(kind: str, name: str, tensor: Tensor) -> Held:
    if tensor.dtype not in DTYPE_CODES:
        raise SaveError(f"{kind}/{name}: {tensor.dtype} cannot be stored; expected one of {', '.join(map(str, DTYPE_CODES))}")
    box = local_box(tensor) if is_sharded(tensor) else tuple(slice(0, length) for length in tensor.shape)
    return Held(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        item_bytes=tensor.dtype.itemsize,
        offset=tuple(side.start for side in box),
        size=tuple(side.stop - side.start for side in box),
    )


def _difference(told: list[tuple[dict[str, str], dict[str, Held]]]) -> str | None:
    """Return the first thing in which a rank differs from rank 0, with both values."""
    (facts, held), *others = told
    for rank, (other_facts, other_held) in enumerate(others, start=1):
        for name in facts:
            if facts[name] != other_facts.get(name):
                return f"{name}: rank 0 has {facts[name]}, rank {rank} has {other_facts.get(name)}; expected the same"
        for name in [*held, *(name for name in other_held if name not in held)]:
            ours, theirs = _whole(held.get(name)), _whole(other_held.get(name))
            if ours != theirs and not name.startswith(f"{OF_EACH_RANK}/"):
                return f"{name}: rank 0 has {ours}, rank {rank} has {theirs}; expected the same tensors on all ranks"
    return None


def _whole(held: Held | None) -> str:
    return "none" if held is None else f"{held.dtype} {list(held.shape)}"


def _assign(held: list[dict[str, Held]]) -> tuple[dict[str, StoredTensor], dict[tuple[str, int], bool], int]:
    """Return every tensor with its parts, who writes a part of what, and how many bytes all parts have."""
    written = [0] * len(held)
    tensors: dict[str, StoredTensor] = {}
    owners: dict[tuple[str, int], bool] = {}
    for full_name in dict.fromkeys(name for some in held for name in some):
        kind, _, name = full_name.partition("/")
        holders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for rank, some in enumerate(held):
            if full_name in some:
                holders.setdefault((some[full_name].offset, some[full_name].size), []).append(rank)
        first = next(some[full_name] for some in held if full_name in some)
        parts = []
        for (offset, size), ranks in sorted(holders.items()):
            num_values = math.prod(size)
            if num_values == 0 and 0 not in first.shape:
                continue
            owner = min(ranks, key=lambda rank: (written[rank], rank))
            written[owner] += num_values * first.item_bytes
            owners[full_name, owner] = True
            parts.append(Part(file_name(kind, owner, len(held)), name, offset, size))
        tensors[full_name] = StoredTensor(first.shape, first.dtype, tuple(parts))
    return tensors, owners, sum(written)


def _gap(name: str, stored: StoredTensor) -> str | None:
    """Return what is wrong where the parts do not make up the whole."""
    expected, found = math.prod(stored.shape), sum(math.prod(part.shape) for part in stored.parts)
    if expected == found:
        return None
    return f"{name}: expected parts of {expected} values in all on the ranks, found {found}; was the model sharded another way?"
