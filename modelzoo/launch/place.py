"""A process's place in a run, read from its environment: that of torchrun, of `modelzoo train`, or of SLURM's srun."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from modelzoo.errors import ConfigError

__all__ = ["Place", "first_host", "place_of"]

LOWEST_PORT, PORTS = 20_000, 12_000
"""Ports for the meeting of a SLURM job: below those that systems hand out by themselves (32768 and up)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which process of a run this is.

    Attributes:
        rank: From 0.
        world_size: Processes of the run.
        local_rank: From 0 on each machine.
        local_size: Processes of the run on this machine.
        address: Where rank 0 is met; None where nobody said.
        port: As `address`.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str | None = None
    port: int | None = None


def is_started(environment: Mapping[str, str]) -> bool:
    """Return whether a process was started as one of a run's by torchrun, srun or this project, be it the only one.

    Args:
        environment: As `os.environ`.

    Raises:
        ConfigError: As of `place_of`.
    """
    return bool(environment.get("RANK")) or place_of(environment).world_size > 1


def place_of(environment: Mapping[str, str]) -> Place:
    """Return the place that an environment gives: torchrun's variables first, then those of an srun step; else one process.

    Args:
        environment: As `os.environ`.

    Raises:
        ConfigError: RANK without WORLD_SIZE, or values that are no places.
    """
    if environment.get("RANK") or environment.get("WORLD_SIZE"):
        return _of_torchrun(environment)
    # a batch script has SLURM_PROCID and SLURM_NTASKS as well, but it is no task of a step
    if environment.get("SLURM_STEP_ID") and environment.get("SLURM_PROCID"):
        return _of_slurm(environment)
    return Place()


def _of_torchrun(environment: Mapping[str, str]) -> Place:
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if not rank or not world_size:
        raise ConfigError(f"environment: RANK={rank} and WORLD_SIZE={world_size}: expected both or none; use torchrun")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    texts = (rank, world_size, environment.get("LOCAL_RANK", rank), environment.get("LOCAL_WORLD_SIZE", "1"))
    own, size, local_rank, local_size = _numbers(dict(zip(names, texts, strict=True)), "torchrun")
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    return _checked(
        Place(own, size, local_rank, local_size, address, int(port) if port.isdecimal() else None), "RANK", "WORLD_SIZE"
    )


def _of_slurm(environment: Mapping[str, str]) -> Place:
    """Return the place of a task of a step: its first host is where rank 0 is, and the job's number gives the port."""
    size_name = "SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    texts = {name: environment.get(name, "") for name in ("SLURM_PROCID", size_name)}
    texts["SLURM_LOCALID"] = environment.get("SLURM_LOCALID", "0")
    rank, world_size, local_rank = _numbers(texts, "srun")
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    job = environment.get("SLURM_JOB_ID", "0")
    step = environment.get("SLURM_STEP_ID", "0")
    port = environment.get("MASTER_PORT", "")
    offset = (int(job if job.isdecimal() else 0) * 7 + int(step if step.isdecimal() else 0)) % PORTS
    place = Place(
        rank,
        world_size,
        local_rank,
        _tasks_here(environment, world_size),
        environment.get("MASTER_ADDR") or (first_host(hosts) if hosts else None),
        int(port) if port.isdecimal() else LOWEST_PORT + offset,
    )
    return _checked(place, "SLURM_PROCID", size_name)


def first_host(hosts: str) -> str:
    """Return the first host of SLURM's short form: `gpu[003-007,9],login1` is gpu003 and others.

    Args:
        hosts: As in SLURM_NODELIST.
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^\[\],-]*)[^\[\]]*\]", r"\1", first[0] if first else "")


def _tasks_here(environment: Mapping[str, str], world_size: int) -> int:
    """Return how many tasks of the step run on this node, from the form `4(x2),3`."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    if not text:
        return world_size if environment.get("SLURM_NNODES", "1") == "1" else 1
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ConfigError(f"environment: SLURM_STEP_TASKS_PER_NODE={text}: expected a form like 4(x2),3; use srun")
        counts += [int(found[1])] * int(found[2] or 1)
    node = environment.get("SLURM_NODEID", "0")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else counts[0]


def _numbers(texts: Mapping[str, str], source: str) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts.values())
    except ValueError as error:
        shown = ", ".join(f"{name}={text}" for name, text in texts.items())
        raise ConfigError(f"environment: {shown}: expected whole numbers; use {source}") from error


def _checked(place: Place, rank: str, world_size: str) -> Place:
    if not 0 <= place.rank < place.world_size:
        raise ConfigError(
            f"environment: {rank}={place.rank} is not below {world_size}={place.world_size}; use torchrun or srun, which set both"
        )
    return place
