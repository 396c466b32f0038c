"""Bytes that a step moves: between ranks by kind of exchange, and between tiers.

Between ranks: rings, as `modelzoo.runtime.Traffic` counts them. With whole bytes E, in blocks B, in no block R, s shard ranks, r
replicas and a micro-batches (Rajbhandari et al., 2020, section 7, for `fully_shard`'s levels):

    gather      (s - 1) / s of E (levels 1, 2) or a (2 B + R) (level 3), in the compute dtype
    reduce      (s - 1) / s of E (level 1) or a E (levels 2, 3), in float32
    replicate   2 (r - 1) / r of E / s, in float32
    tensor      2 (t - 1) / t of 4 sums a block (two in each direction) and 2 of embeddings and loss, of n D values

Between tiers: what `place_units` says for one micro-batch; every further one reads the parameters that are on disk twice more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from modelzoo.plan.layout import Cut
from modelzoo.plan.memory import MemoryPlan
from modelzoo.plan.parts import AttentionPart, ModelParts
from modelzoo.plan.workload import Workload

__all__ = ["TrafficPlan", "plan_traffic"]


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Bytes of a step, of one rank."""

    between_ranks: Mapping[str, int]
    """Sent, by kind of exchange."""
    disk_read: int
    disk_written: int

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
    reduced = {0: 0, 1: blocks + rest, 2: count * (blocks + rest), 3: count * (blocks + rest)}[config.zero]
    replicas = config.data_replicate
    sent = {
        "gather": work.value_bytes * gathered * (shard - 1) // shard,
        "reduce": 4 * reduced * (shard - 1) // shard,
        "replicate": 2 * 4 * (blocks + rest) // shard * (replicas - 1) // replicas,
        "tensor": _tensor(model, work, cut.tensor),
    }
    read, written = _disk(model, work, cut, memory)
    return TrafficPlan({kind: size for kind, size in sent.items() if size}, read, written)


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


def _disk(model: ModelParts, work: Workload, cut: Cut, memory: MemoryPlan) -> tuple[int, int]:
    placement = memory.placement
    if placement is None or not placement.disk_bytes:
        return 0, 0
    away = dict.fromkeys(("parameters", "exp_avg", "exp_avg_sq", "gradients"), 0)
    for unit, homes in zip(model.units, placement.homes, strict=True):
        size = 4 * cut.tier_sizes(unit).shard
        for kind, home in homes.items():
            away[kind] += size if home == "disk" else 0
    moments = away["exp_avg"] + away["exp_avg_sq"]
    read = 2 * work.micro_batches * away["parameters"] + moments + work.micro_batches * away["gradients"]
    written = away["parameters"] + moments + work.micro_batches * away["gradients"]
    return read, written
