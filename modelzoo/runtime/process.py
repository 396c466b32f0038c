"""The processes of a run: who takes part, on which device, and the few small things that they tell each other.

A run is one plain process, without any process group, or the processes that torchrun started (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT in the environment). Tensors of the model travel through `fully_shard`; what goes through here are Python
numbers and small objects.
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # documented names that the package does not list in __all__
    HashStore,
    Store,
    TCPStore,
    rendezvous,
)

from modelzoo.errors import ConfigError, RankError

__all__ = ["World", "connect"]

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILURE_KEY = "modelzoo/first-failure"


class World:
    """The processes of a run as one of them sees them; a context manager that leaves the group at its end.

    Every method that talks to the others is collective: all ranks call it, in the same order. On one process each of them
    returns at once and needs no process group.

    Attributes:
        rank: The number of this process, from 0.
        world_size: How many processes take part.
        local_rank: The number of this process on its machine; the index of its accelerator.
        device: Where this process computes.
        timeout_s: Seconds after which a collective that a rank does not join is an error.
        tensor_size: How many neighbouring ranks compute one sample together (set by `prepare`).
        agreed_error: The error that all ranks are raising together, if any (set by `raise_together`).
    """

    def __init__(self, rank: int, world_size: int, local_rank: int, device: torch.device, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.device = device
        self.timeout_s = timeout_s
        self.tensor_size = 1
        self.agreed_error: BaseException | None = None
        self._store: Store | None = None
        self._owns_group = False

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, world_size={self.world_size}, local_rank={self.local_rank}, device={self.device})"

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes and logs."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which share of the data this rank works on; ranks of one tensor axis work on the same."""
        return self.rank // self.tensor_size

    @property
    def data_size(self) -> int:
        """Into how many shares the data are cut."""
        return self.world_size // self.tensor_size

    def sum_data(self, values: Sequence[float]) -> list[float]:
        """Return the sums of `values` over all shares of the data, in float64: ranks of one tensor axis count once.

        Args:
            values: As many numbers on every rank.
        """
        return self.sum(self.once(values))

    def once(self, values: Sequence[float]) -> list[float]:
        """Return `values` on the first rank of each tensor axis and zeros on the others, so that a sum counts each share once."""
        return [float(value) if self.rank % self.tensor_size == 0 else 0.0 for value in values]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of `values` over all ranks, in float64, the same on every rank.

        Args:
            values: As many numbers on every rank.
        """
        if self.world_size == 1:
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64)
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise self._lost("adding up numbers", error) from error
        return [float(value) for value in total.tolist()]

    def gather(self, value: T) -> list[T]:
        """Return the `value` of every rank, in rank order, on every rank (small Python objects)."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise self._lost("gathering values", error) from error
        return values  # type: ignore[return-value]  # every place is filled by the collective

    def broadcast(self, value: T) -> T:
        """Return rank 0's `value` on every rank (a small Python object)."""
        if self.world_size == 1:
            return value
        values = [value]
        try:
            dist.broadcast_object_list(values, src=0)
        except RuntimeError as error:
            raise self._lost("hearing from rank 0", error) from error
        return values[0]

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.sum([0.0])

    def first_failure(self, message: str) -> tuple[int, str]:
        """Report that this rank fails, and return the rank and the message of the one that failed first.

        Not collective. Rank 0's store holds the report; where it cannot be reached any more, this rank is the first it knows of.
        """
        own = (self.rank, message)
        if self._store is None:
            return own
        try:
            kept = self._store.compare_set(FAILURE_KEY, "", json.dumps(own))
        except RuntimeError:
            return own
        rank, text = json.loads(kept)
        return int(rank), str(text)

    def joined(self) -> Self:
        """Return this world with a process group, also where one process alone has made none yet."""
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
            self._owns_group = True
        return self

    def close(self) -> None:
        """Leave the process group, if `connect` made one; the other ranks notice at once if they still wait for this one."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _lost(self, doing: str, error: RuntimeError) -> RankError:
        return RankError(
            f"rank {self.rank} of {self.world_size}: {doing}: another rank was lost, or did not answer within "
            f"{self.timeout_s:g} s ({str(error).splitlines()[0][:200]}); look at that rank's own message"
        )


def connect(timeout_s: float = 60, device: str | torch.device | None = None, *, join_timeout_s: float = 900) -> World:
    """Return this process's place in the run, after all ranks have joined.

    A process group that exists already is used and left as it is.

    Args:
        timeout_s: Seconds that a collective waits for a rank, above 0.
        device: Where to compute; the accelerator of this local rank if there is one, else the CPU.
        join_timeout_s: Seconds that ranks wait for each other at the start, where one may still be reading its data.

    Raises:
        ConfigError: The environment has RANK without WORLD_SIZE, or values that are no rank numbers.
        RankError: Not every rank joined in time; the message names those that did not.
    """
    rank, world_size, local_rank = _places()
    place = _device(device, local_rank)
    world = World(rank, world_size, local_rank, place, timeout_s)
    if dist.is_initialized():
        world.rank, world.world_size = dist.get_rank(), dist.get_world_size()
        return world
    if world_size == 1:
        return world
    started = time.monotonic()
    store = _meeting_place(rank, world_size, join_timeout_s)
    _wait_for_all(store, rank, world_size, join_timeout_s - (time.monotonic() - started))
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))
    world._store, world._owns_group = store, True
    log.debug("%s joined on %s after %.1f s", world, backend, time.monotonic() - started)
    return world


def _places() -> tuple[int, int, int]:
    """Return rank, world size and local rank from the environment, 0, 1, 0 outside torchrun."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    texts = [os.environ.get(name) for name in names]
    if texts[0] is None or texts[1] is None:
        if texts[0] != texts[1]:
            raise ConfigError(f"environment: RANK={texts[0]} and WORLD_SIZE={texts[1]}: expected both or none; use torchrun")
        return 0, 1, 0
    try:
        rank, world_size, local_rank = (int(text) for text in (texts[0], texts[1], texts[2] or texts[0]))
    except ValueError as error:
        raise ConfigError(f"environment: {dict(zip(names, texts, strict=True))}: expected whole numbers; use torchrun") from error
    if not 0 <= rank < world_size:
        raise ConfigError(f"environment: RANK={rank} is not below WORLD_SIZE={world_size}; use torchrun")
    return rank, world_size, local_rank


def _device(device: str | torch.device | None, local_rank: int) -> torch.device:
    """Return the wanted device, with this process's index; make it the current one if it is an accelerator."""
    place = torch.device(device) if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if place.type != "cuda":
        return place
    if not torch.cuda.is_available():
        raise ConfigError(f"device={place}: torch {torch.__version__} finds no CUDA device here; use device=cpu")
    index = local_rank if place.index is None else place.index
    if index >= torch.cuda.device_count():
        raise ConfigError(f"device=cuda:{index}: there are {torch.cuda.device_count()} here; start fewer processes")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _meeting_place(rank: int, world_size: int, join_timeout_s: float) -> Store:
    """Return the store of the run: torchrun's own, or one that rank 0 opens at MASTER_ADDR and MASTER_PORT."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    patience = timedelta(seconds=join_timeout_s)
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store: Store = next(iter(rendezvous("env://", timeout=patience)))[0]
            return store
        if address is None or port is None or not port.isdecimal():
            raise ConfigError(f"environment: MASTER_ADDR={address} and MASTER_PORT={port}: expected both; use torchrun")
        # rank 0 does not wait for the others here, so that those that never come can be named
        return TCPStore(address, int(port), None, rank == 0, patience, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise RankError(
            f"rank {rank} of {world_size}: no meeting at {address}:{port} within {join_timeout_s:g} s: {str(error).splitlines()[0]}"
        ) from error


def _wait_for_all(store: Store, rank: int, world_size: int, seconds: float) -> None:
    """Wait until every rank has said that it is there; name those that have not."""
    keys = [f"modelzoo/here/{other}" for other in range(world_size)]
    store.set(keys[rank], "")
    try:
        store.wait(keys, timedelta(seconds=max(seconds, 1.0)))
    except RuntimeError as error:
        missing = [other for other, key in enumerate(keys) if not store.check([key])]
        raise RankError(f"rank {rank} of {world_size}: ranks {missing} did not join in time; look at their own messages") from error
