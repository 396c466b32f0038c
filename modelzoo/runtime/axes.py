"""The ranks of a run as a grid: groups that replicate, ranks that shard, ranks that compute one sample together."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import ConfigError
from modelzoo.quantities import counted
from modelzoo.runtime.memory import free_bytes
from modelzoo.runtime.process import World

__all__ = ["REPLICATE", "SHARD", "TENSOR", "build_mesh", "needs_mesh", "resolve"]

REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"
STATE_BYTES = 16
"""Bytes a trained parameter takes in float32: itself, its gradient and two moments."""
ROOMY_SHARE = 0.5
"""Share of a rank's memory that the states may take before `zero: auto` also cuts the parameters."""


def resolve(config: ParallelConfig, world: World, model: nn.Module) -> ParallelConfig:
    """Return the config with every `auto` decided, and check that it fits the number of ranks.

    Args:
        config: As asked for.
        world: The processes.
        model: Its size decides about `zero: auto`.

    Raises:
        ConfigError: The axes do not multiply to the number of ranks, or contradict the ZeRO level, or nobody has decided about
            recomputation.
    """
    if config.recompute == "auto":
        raise ConfigError(
            "parallel.recompute=auto is decided by a plan, which knows the rows of a batch (`modelzoo train` makes one); here use "
            'none, blocks, selective, "first N" or "every N"'
        )
    fixed = config.tensor * config.data_replicate
    shown = f"parallel.tensor={config.tensor} x parallel.data_replicate={config.data_replicate}"
    if world.world_size % fixed:
        raise ConfigError(
            f"{shown} = {fixed} does not divide the {counted(world.world_size, 'process')} of this run; start a multiple of "
            f"{fixed}, or change one of the two"
        )
    left = world.world_size // fixed
    if config.zero == 0:
        if config.data_shard not in ("auto", 1):
            raise ConfigError(f"parallel.zero=0 cuts nothing, found parallel.data_shard={config.data_shard}; remove one of the two")
        return config.model_copy(update={"data_shard": 1, "data_replicate": left * config.data_replicate})
    if config.data_shard not in ("auto", left):
        raise ConfigError(
            f"{shown} x parallel.data_shard={config.data_shard} is not the {counted(world.world_size, 'process')} of this run; "
            f"use parallel.data_shard={left} or auto"
        )
    zero = _zero(world, model, left * config.tensor) if config.zero == "auto" else config.zero
    return config.model_copy(update={"data_shard": left, "zero": zero})


def needs_mesh(config: ParallelConfig, world_size: int, *, for_tiers: bool = False) -> bool:
    """Return whether a model is sharded: on many processes, and on one where only `fully_shard` does what is asked of it.

    Args:
        config: How.
        world_size: Number of processes.
        for_tiers: Whether values will leave memory; one process does that in place, but inside no compiled block.
    """
    return world_size > 1 or config.precision != "float32" or (for_tiers and config.compile)


def build_mesh(config: ParallelConfig, world: World) -> DeviceMesh:
    """Return the grid of a resolved config; neighbouring ranks share a tensor axis first, then a shard axis. Collective.

    Grids of one shape are one grid: each has process groups of its own, with threads that live as long as the run.
    """
    assert isinstance(config.data_shard, int)
    sizes = (config.data_replicate, config.data_shard, config.tensor)
    if sizes not in world.meshes:
        world.meshes[sizes] = init_device_mesh(world.device.type, sizes, mesh_dim_names=(REPLICATE, SHARD, TENSOR))
    return world.meshes[sizes]


def _zero(world: World, model: nn.Module, parts: int) -> int:
    """Return 2 where the states of the whole model are small beside the least memory of any rank, else 3. Collective."""
    if parts == 1:
        return 0 if world.world_size == 1 else 2
    count = sum(parameter.numel() for parameter in model.parameters())
    least = min(world.gather(free_bytes(torch.device(world.device))))
    return 2 if STATE_BYTES * count <= ROOMY_SHARE * least else 3
