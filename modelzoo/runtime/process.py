"""The processes of a run: who takes part, on which device, and the few small things that they tell each other.

A run is one plain process, without any process group, or those that `modelzoo train`, torchrun or srun started (`Place` says how
it is known). Tensors of the model travel through `fully_shard`; what goes through here are Python numbers and small objects.
"""

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
from torch.distributed.device_mesh import DeviceMesh

from modelzoo.errors import ConfigError, RankError
from modelzoo.launch import LISTEN_VARIABLE, Board, Place, board_of, place_of
from modelzoo.runtime.lost import in_collective
from modelzoo.runtime.memory import SHARED_LARGE_BYTES, give_back_at_once
from modelzoo.runtime.roll_call import RollCall, StoreBoard

__all__ = ["World", "connect"]

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        meshes: Grids of ranks that were made, by their sizes (see `build_mesh`).
        agreed_error: The error that all ranks are raising together, if any (set by `raise_together`).
        roll_call: Where ranks say what they do; None on one process, and in a group that `connect` did not make.
    """

    def __init__(self, rank: int, world_size: int, local_rank: int, device: torch.device, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.device = device
        self.timeout_s = timeout_s
        self.tensor_size = 1
        self.agreed_error: BaseException | None = None
        self.roll_call: RollCall | None = None
        self.meshes: dict[tuple[int, int, int], DeviceMesh] = {}
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
        with in_collective("adding up numbers"):
            dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def gather(self, value: T) -> list[T]:
        """Return the `value` of every rank, in rank order, on every rank (small Python objects)."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        with in_collective("gathering values"):
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # every place is filled by the collective

    def broadcast(self, value: T) -> T:
        """Return rank 0's `value` on every rank (a small Python object)."""
        if self.world_size == 1:
            return value
        values = [value]
        with in_collective("hearing from rank 0"):
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.sum([0.0])

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do, so that it can be named if the rank is lost there. Not collective.

        Args:
            doing: "the forward of step 4".
        """
        if self.roll_call is not None:
            self.roll_call.enter(doing)

    def meet(self, doing: str) -> None:
        """Wait until every rank has come to this same point; for what must not be called on one rank alone. Collective.

        Args:
            doing: What the meeting is for: "the save of step 4".

        Raises:
            RankError: A rank is somewhere else in the program; the message says where.
        """
        self.enter(doing)
        if self.roll_call is not None:
            self.roll_call.arrive(doing, self.timeout_s)

    def joined(self) -> Self:
        """Return this world with a process group, also where one process alone has made none yet."""
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
            self._owns_group = True
        return self

    def abandon(self) -> None:
        """Drop the connections to the other ranks, so that those that wait for this one notice at once."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False
        self.meshes.clear()

    def close(self) -> None:
        """Leave the process group, if `connect` made one; the other ranks notice at once if they still wait for this one."""
        if self.roll_call is not None:
            self.roll_call.leave()
        self.abandon()
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


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
    own = place_of(os.environ)
    place = _device(device, own.local_rank)
    world = World(own.rank, own.world_size, own.local_rank, place, timeout_s)
    if dist.is_initialized():
        world.rank, world.world_size = dist.get_rank(), dist.get_world_size()
        return world
    if own.world_size == 1:
        return world
    started = time.monotonic()
    if place.type == "cpu":  # what sharding saves would stay in glibc's heap
        give_back_at_once(SHARED_LARGE_BYTES)
    store, keeper = _meeting_place(own, join_timeout_s)
    _wait_for_all(store, own, join_timeout_s - (time.monotonic() - started))
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=own.rank, world_size=own.world_size, timeout=timedelta(seconds=timeout_s))
    world._store, world._owns_group = store, True
    folder = board_of(os.environ)
    board: Board = folder if folder is not None else StoreBoard(store)
    world.roll_call = RollCall(board, own.rank, own.world_size, keeper=keeper if folder is None else None)
    world.roll_call.start()
    log.debug("%s joined on %s after %.1f s", world, backend, time.monotonic() - started)
    return world


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


def _meeting_place(place: Place, join_timeout_s: float) -> tuple[Store, int | None]:
    """Return the store of the run and the rank that holds it: none for torchrun's own, else rank 0, at the place's address."""
    patience = timedelta(seconds=join_timeout_s)
    where = f"{place.address}:{place.port}"
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store: Store = next(iter(rendezvous("env://", timeout=patience)))[0]
            return store, None
        if place.address is None or place.port is None:
            raise ConfigError(
                f"environment: MASTER_ADDR={place.address} and MASTER_PORT={place.port}: expected both; use torchrun or srun"
            )
        socket_number = os.environ.get(LISTEN_VARIABLE) if place.rank == 0 else None
        # rank 0 does not wait for the others here, so that those that never come can be named
        store = TCPStore(
            place.address,
            place.port,
            None,
            place.rank == 0,
            patience,
            wait_for_workers=False,
            master_listen_fd=None if socket_number is None else int(socket_number),
        )
        return store, 0
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise RankError(
            f"rank {place.rank} of {place.world_size}: no meeting at {where} within {join_timeout_s:g} s: "
            f"{str(error).splitlines()[0]}; look at rank 0's own messages, and whether this machine reaches that one"
        ) from error


def _wait_for_all(store: Store, place: Place, seconds: float) -> None:
    """Wait until every rank has said that it is there; name those that have not."""
    keys = [f"modelzoo/here/{other}" for other in range(place.world_size)]
    store.set(keys[place.rank], "")
    try:
        store.wait(keys, timedelta(seconds=max(seconds, 1.0)))
    except RuntimeError as error:
        missing = [other for other, key in enumerate(keys) if not store.check([key])]
        raise RankError(
            f"rank {place.rank} of {place.world_size}: ranks {missing} did not join in time; look at their own messages"
        ) from error
