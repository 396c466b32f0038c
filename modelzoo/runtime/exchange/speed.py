"""How fast the ranks of this run exchange tensors: what each kind of exchange takes at several sizes, measured."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from modelzoo.runtime.exchange.part_exchange import all_gather, reduce_scatter
from modelzoo.runtime.lost import in_collective
from modelzoo.runtime.process import World

__all__ = ["SIZES", "ExchangeTime", "measure_exchanges"]

SIZES = (4 * 2**10, 256 * 2**10, 4 * 2**20, 64 * 2**20)
"""Bytes of the whole tensor: a bias, a small matrix, a block of a small model, one of a large model."""
LEAST_S, MOST_ROUNDS = 0.2, 50
"""An exchange is repeated until this time has passed, three times at least."""


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """What one kind of exchange takes at one size.

    Attributes:
        kind: "all-gather", "reduce-scatter" or "all-reduce".
        size_bytes: Of the whole tensor.
        seconds: Median time of one exchange, on the slowest rank.
        bytes_per_s: What each rank sends in a ring, over that time; to be compared with the bandwidth of the link.
    """

    kind: str
    size_bytes: int
    seconds: float
    bytes_per_s: float


def measure_exchanges(world: World, sizes: Sequence[int] = SIZES) -> list[ExchangeTime]:
    """Return the times of all kinds at all sizes, the same on every rank. Collective; needs two ranks at least.

    Args:
        world: The processes.
        sizes: Bytes of the whole tensor; rounded up to a multiple of the ranks.
    """
    found = []
    group = cast(dist.ProcessGroup, dist.group.WORLD)  # None stands for the default one as well
    for size in sizes:
        count = math.ceil(size / 4 / world.world_size) * world.world_size
        whole = torch.ones(count, dtype=torch.float32, device=world.device)
        part = whole[: count // world.world_size].clone()
        actions: dict[str, tuple[Callable[[Tensor, Tensor], object], int]] = {
            "all-gather": (lambda whole, part: all_gather(whole, part, group), 1),
            "reduce-scatter": (lambda whole, part: reduce_scatter(part, whole, group), 1),
            "all-reduce": (lambda whole, part: dist.all_reduce(whole), 2),
        }
        for kind, (action, passes) in actions.items():
            world.enter(f"measuring an {kind} of {whole.nbytes} bytes")
            seconds = _time(world, kind, lambda action=action, whole=whole, part=part: action(whole, part))  # type: ignore[misc]  # a lambda's defaults have no types
            sent = passes * whole.nbytes * (world.world_size - 1) / world.world_size
            found.append(ExchangeTime(kind, whole.nbytes, seconds, sent / seconds))
            whole.fill_(1)
    return found


def _time(world: World, kind: str, action: Callable[[], object]) -> float:
    """Return the median seconds of an exchange on the slowest rank."""
    times: list[float] = []
    with in_collective(f"an {kind}"):
        action()
        while True:
            started = time.perf_counter()
            action()
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)
            times.append(time.perf_counter() - started)
            is_enough = len(times) >= 3 and (sum(times) >= LEAST_S or len(times) >= MOST_ROUNDS)
            # rank 0 decides, so that all take part in equally many
            if len(times) >= 3 and world.broadcast(is_enough):
                return max(world.gather(statistics.median(times)))
