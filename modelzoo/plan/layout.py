"""How a model's values are cut over the ranks, and how many of them one rank has."""

from types import SimpleNamespace
from typing import Any

from torch import nn

from modelzoo.config import ParallelConfig
from modelzoo.plan.parts import ModelParts, UnitParts
from modelzoo.runtime.axes import ROOMY_SHARE, STATE_BYTES, needs_mesh, resolve
from modelzoo.runtime.tiers.placement import Sizes
from modelzoo.runtime.tiers.unit import aligned

__all__ = ["Cut", "cut_of", "resolve_for"]


class Cut:
    """The number of a unit's values on one rank.

    Args:
        config: With every `auto` decided.
    """

    def __init__(self, config: ParallelConfig) -> None:
        assert isinstance(config.data_shard, int)
        self.config, self.shard, self.tensor = config, config.data_shard, config.tensor

    @property
    def shared_by(self) -> int | None:
        """Ranks between which `fully_shard` shares the values of tiers; None on one process, which computes in place."""
        return self.shard * self.config.data_replicate if self.is_sharded(for_tiers=True) else None

    def is_sharded(self, *, for_tiers: bool) -> bool:
        """Return whether `fully_shard` puts units together, on one process as well as on many."""
        return needs_mesh(self.config, self.shard * self.config.data_replicate * self.tensor, for_tiers=for_tiers)

    def shape_values(self, shape: tuple[int, ...], is_split: bool) -> int:
        """Values of a rank's shard of a parameter, rows that make all ranks' equal included (`fully_shard`'s rule)."""
        whole = self.whole_values(shape, is_split)
        rows = max(-(-shape[0] // self.tensor) if is_split else shape[0], 1) if shape else 1
        return -(-rows // self.shard) * (whole // rows)

    def whole_values(self, shape: tuple[int, ...], is_split: bool) -> int:
        """Values of a parameter when its shards are put together: a tensor rank's part."""
        count = 1
        for length in shape:
            count *= length
        return -(-count // self.tensor) if is_split else count

    def held(self, unit: UnitParts) -> int:
        """Values of the shards of a unit."""
        return sum(self.shape_values(shape, split) for shape, split in zip(unit.shapes, unit.splits, strict=True))

    def whole(self, unit: UnitParts) -> int:
        """Values of a unit put together."""
        return sum(self.whole_values(shape, split) for shape, split in zip(unit.shapes, unit.splits, strict=True))

    def trained(self, unit: UnitParts, *, whole: bool = False) -> int:
        """Values of a unit that are trained: of its shards, or put together."""
        count = self.whole_values if whole else self.shape_values
        each = zip(unit.shapes, unit.splits, unit.trained, strict=True)
        return sum(count(shape, split) for shape, split, is_trained in each if is_trained)

    def tier_sizes(self, unit: UnitParts) -> Sizes:
        """Return what the tiers' placement takes of a unit."""
        shapes = zip(unit.shapes, unit.splits, strict=True)
        region = sum(aligned(max(self.shape_values(shape, split), 1)) for shape, split in shapes)
        return Sizes(unit.name, region, self.whole(unit), self.trained(unit), unit.is_block, self.config.value_bytes)


def cut_of(config: ParallelConfig) -> Cut:
    """Return the cut of a resolved config."""
    return Cut(config)


def resolve_for(config: ParallelConfig, model: ModelParts, ranks: int, memory_bytes: int) -> ParallelConfig:
    """Return a config with every `auto` decided as the runtime would on another machine.

    Args:
        config: As asked for.
        model: Its size decides about `zero: auto`.
        ranks: Processes.
        memory_bytes: Of the tier that a rank computes in.

    Raises:
        ConfigError: The axes do not multiply to the number of ranks, or contradict the ZeRO level.
    """
    if config.zero == "auto":
        left = max(ranks // (config.data_replicate * config.tensor), 1)
        if left * config.tensor == 1:
            zero = 0 if ranks == 1 else 2
        else:
            zero = 2 if STATE_BYTES * model.numel <= ROOMY_SHARE * memory_bytes else 3
        config = config.model_copy(update={"zero": zero})
    # the number of processes is all that is asked of them once the level is known
    processes: Any = SimpleNamespace(world_size=ranks)
    return resolve(config, processes, nn.Module())
