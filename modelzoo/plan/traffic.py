"""Bytes that a step moves: between ranks by kind of exchange, and between tiers.

Between ranks: rings, as `modelzoo.runtime.Traffic` counts them. With whole bytes E, in blocks B, in no block R, s shard ranks, r
replicas and a micro-batches (Rajbhandari et al., 2020, section 7, for `fully_shard`'s levels):

    gather      (s - 1) / s of E (levels 1, 2) or a (2 B + R) (level 3), in the compute dtype
    reduce      (s - 1) / s of E (level 1) or a E (levels 2, 3), in float32
    replicate   2 (r - 1) / r of E / s, in float32; with tiers, as the reduction of level 1, for every micro-batch
    tensor      2 (t - 1) / t of 4 sums a block (two in each direction) and 2 of embeddings and loss, of n D values

Between tiers: what `place_units` says for one micro-batch; every further one reads the parameters that are on disk twice more, and
writes the gradients and reads them once more. Below an accelerator parameters go up twice and gradients down once. Inputs of blocks
that wait on disk are written in the forward and read in the backward.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelzoo.config.parallel import recomputed
from modelzoo.plan.layout import Cut
from modelzoo.plan.memory import MemoryPlan
from modelzoo.plan.parts import AttentionPart, ModelParts
from modelzoo.plan.workload import Workload
from modelzoo.runtime.tiers.inputs import INPUT_BUFFERS

__all__ = ["TrafficPlan", "plan_traffic"]


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Bytes of a step, of one rank."""

    between_ranks: Mapping[str, int]
    """Sent, by kind of exchange."""
    disk: Mapping[str, tuple[int, int]]
    """Read and written, by phase of a step: forward, backward, update."""
    bus: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Copied up to an accelerator and down to its host, by phase."""

    @property
    def disk_read(self) -> int:
        """From the disk."""
        return sum(read for read, _ in self.disk.values())

    @property
    def disk_written(self) -> int:
        """To the disk."""
        return sum(written for _, written in self.disk.values())

    @property
    def by_pair(self) -> dict[str, int]:
        """Bytes between tiers, by pair."""
        found = {"disk>host": self.disk_read, "host>disk": self.disk_written}
        if self.bus:
            found["host>device"] = sum(up for up, _ in self.bus.values())
            found["device>host"] = sum(down for _, down in self.bus.values())
        return found

    @property
    def sent(self) -> int:
        """Of all kinds."""
        return sum(self.between_ranks.values())


def plan_traffic(model: ModelParts, work: Workload, cut: Cut, memory: MemoryPlan) -> TrafficPlan:
    """Return what a step moves.

    Args:
        model: Its units.
        work: Of a rank.
        cut: Over the ranks.
        memory: Says what is on disk.
    """
    config, shard, count = cut.config, cut.shard, work.micro_batches
    assert config.zero != "auto"
    blocks = sum(_padded(cut, unit) for unit in model.blocks)
    rest = _padded(cut, model.units[-1])
    gathered = {0: 0, 1: blocks + rest, 2: blocks + rest, 3: count * (2 * blocks + rest)}[config.zero]
    # with tiers gradients wait for no further micro-batch
    every = count if memory.placement is not None else 1
    reduced = {0: 0, 1: every * (blocks + rest), 2: count * (blocks + rest), 3: count * (blocks + rest)}[config.zero]
    replicas = config.data_replicate
    sent = {
        "gather": work.value_bytes * gathered * (shard - 1) // shard,
        "reduce": 4 * reduced * (shard - 1) // shard,
        "replicate": every * 2 * 4 * (blocks + rest) // shard * (replicas - 1) // replicas,
        "tensor": _tensor(model, work, cut.tensor),
    }
    ranks = {kind: size for kind, size in sent.items() if size}
    return TrafficPlan(ranks, _disk(model, work, cut, memory), _bus(model, work, cut, memory))


def _bus(model: ModelParts, work: Workload, cut: Cut, memory: MemoryPlan) -> dict[str, tuple[int, int]]:
    """Return bytes that go up to an accelerator and down from it, by phase: every micro-batch needs its blocks and has gradients.

    Gradients of further micro-batches are added on the device, so that what is there already goes up as well.
    """
    placement, count = memory.placement, work.micro_batches
    forward = backward = down = 0
    for unit, homes in zip(model.units, placement.homes if placement is not None else (), strict=placement is not None):
        if not memory.is_below_device or homes["parameters"] == "memory":
            continue
        size = 4 * cut.tier_sizes(unit).shard
        gradients = size * any(unit.trained)
        forward += count * size
        backward += count * size * unit.is_block + (count - 1) * gradients
        down += count * gradients
    return {"forward": (forward, 0), "backward": (backward, down)} if forward else {}


def _padded(cut: Cut, unit: object) -> int:
    """Values of a unit with the rows that make all shards equal."""
    return cut.held(unit) * cut.shard  # type: ignore[arg-type]  # a UnitParts


def _tensor(model: ModelParts, work: Workload, ranks: int) -> int:
    if ranks == 1:
        return 0
    sums = 0
    for unit in model.blocks:
        attentions = sum(isinstance(part, AttentionPart) for part in unit.parts)
        sums += 2 * (attentions + 1)
    values = (sums + 2) * work.batch_tokens * model.hidden_size
    return 2 * work.value_bytes * values * (ranks - 1) // ranks * work.micro_batches


def _disk(model: ModelParts, work: Workload, cut: Cut, memory: MemoryPlan) -> dict[str, tuple[int, int]]:
    """Return bytes read and written by phase of a step: forward, backward, update (alone, after both)."""
    phases = {"forward": [0, 0], "backward": [0, 0], "update": [0, 0]}
    placement, count = memory.placement, work.micro_batches
    for unit, homes in zip(model.units, placement.homes if placement is not None else (), strict=placement is not None):
        size = 4 * cut.tier_sizes(unit).shard
        values = size * (homes["parameters"] == "disk")
        moments = 2 * size * (homes["exp_avg"] == "disk")
        gradients = size * (homes["gradients"] == "disk")
        is_trained = any(unit.trained)
        phases["forward"][0] += count * values
        phases["backward"][0] += count * values * unit.is_block + (count - 1) * gradients
        phases["backward"][1] += count * gradients
        if not is_trained:
            continue
        # blocks that are not streamed have no turn to wait for
        waits = memory.when == "deferred" and values
        update = phases["forward" if waits else "backward" if memory.when == "in_backward" else "update"]
        # in a slot for the forward, or for the backward
        is_there = waits or (memory.when == "in_backward" and unit.is_block)
        update[0] += moments + gradients + (0 if is_there else values)
        update[1] += moments + values
    if work.offloads_inputs:
        inputs = _inputs(model, work)
        phases["forward"][1] += inputs
        phases["backward"][0] += inputs
    return {name: (read, written) for name, (read, written) in phases.items() if read or written}


def _inputs(model: ModelParts, work: Workload) -> int:
    """Return the bytes of blocks' inputs that go to the disk in a step; the last ones stay in their buffers."""
    chosen = sum(recomputed(work.recompute, len(model.blocks)))
    return max(chosen - (INPUT_BUFFERS - 1), 0) * work.value_bytes * work.batch_tokens * model.hidden_size * work.micro_batches
