"""Other settings for the same run, each planned: overrides to paste, those that fit first, then the fastest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from modelzoo.config import RunSettings
from modelzoo.errors import ConfigError
from modelzoo.plan.machine import Machine
from modelzoo.plan.parts import ModelParts
from modelzoo.plan.plan import Plan, plan_run

__all__ = ["Alternative", "find_alternatives"]

MOST_RANKS = 1024
DISK_SHARE = 0.85
"""Of the host's memory, what a run with a disk tier is given."""

Changes = dict[str, object]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Overrides, and what they lead to."""

    overrides: tuple[str, ...]
    """To put behind `modelzoo train RECIPE`."""
    plan: Plan

    @property
    def text(self) -> str:
        """The overrides in one line."""
        return " ".join(self.overrides)


def find_alternatives(
    settings: RunSettings,
    model: ModelParts,
    machine: Machine,
    plan: Plan,
    *,
    lengths: Sequence[int] | None = None,
    evaluated: Sequence[int] | None = None,
    disk: str = "tiers",
    most: int = 5,
    may_change: Callable[[str], bool] = bool,
) -> list[Alternative]:
    """Return the best other settings.

    Args:
        settings: Of the run.
        model: Its units.
        machine: Where.
        plan: Of the settings as they are.
        lengths: Tokens of each training row.
        evaluated: As of `plan_run`.
        disk: Folder for a disk tier.
        most: How many to return.
        may_change: Says of a key (train.micro_batch_size) whether other values of it are looked at; by default all are.
    """
    found = []
    for changes in _candidates(settings, plan, machine, disk):
        if not all(map(may_change, changes)):
            continue
        ranks = int(str(changes.get("parallel.ranks", plan.ranks)))
        try:
            other = plan_run(_changed(settings, changes), model, machine, ranks=ranks, lengths=lengths, evaluated=evaluated)
        except (ConfigError, ValidationError):
            continue
        # what neither makes room nor time is no alternative; too small a disk for checkpoints is so for all of them
        fits = not other.memory_problems and (not other.disk_problems or bool(plan.disk_problems))
        if fits and (plan.memory_problems or other.peak_bytes < 0.98 * plan.peak_bytes or other.time.step < 0.98 * plan.time.step):
            found.append(Alternative(tuple(f"{key}={_shown(value)}" for key, value in changes.items()), other))
    # a micro-batch as large as it can be: small products are slower than their number of operations says
    found.sort(key=lambda each: (each.plan.ranks, round(each.plan.time.step / plan.time.step, 2), each.plan.work.micro_batches))
    kept: list[Alternative] = []
    for each in found:
        # what is slower has to be smaller
        if all(each.plan.peak_bytes < 0.98 * other.plan.peak_bytes for other in kept if other.plan.ranks <= each.plan.ranks):
            kept.append(each)
    return kept[:most]


def _candidates(settings: RunSettings, plan: Plan, machine: Machine, disk: str) -> Iterator[Changes]:
    """Return overrides worth a look, alone and together."""
    rows, is_host = plan.work.rows * plan.work.micro_batches, machine.kind == "host"
    batches: list[Changes] = [{}]
    size = plan.work.rows // 2
    while size >= 1 and settings.train.batch_tokens is None:
        batches.append({"train.micro_batch_size": size})
        size //= 4
    again: list[Changes] = [{}]
    again += [{"parallel.recompute": how} for how in ("selective", "every 2", "blocks") if how != settings.parallel.recompute]
    levels: list[Changes] = [{}]
    if plan.ranks > 1 and plan.layout.zero != 3 and plan.layout.data_shard != 1:
        levels.append({"parallel.zero": 3})
    if not is_host and settings.parallel.precision == "float32":
        levels += [{**level, "parallel.precision": "bfloat16"} for level in list(levels)]
    tiers: list[Changes] = [{}]
    # moments that leave memory are float32
    moments: Changes = {"optimizer.moments": "float32"} if settings.optimizer.moments == "8bit" else {}
    if is_host and not settings.memory.is_used and plan.memory_problems:
        budget = f"{int(DISK_SHARE * machine.host_memory / 2**20)}MiB"
        home: Changes = {"memory.host": budget, "memory.disk.path": disk, **moments}
        tiers += [home, {**home, "memory.optimizer_update": "deferred"}]
    if not is_host and not settings.memory.is_used and plan.memory_problems:
        below: Changes = {"memory.device": "auto", "memory.optimizer_update": "deferred", **moments}
        tiers += [below, {**below, "memory.disk.path": disk}]
    for tier in tiers:
        for level in levels:
            for how in again:
                for batch in batches:
                    if changes := {**tier, **level, **how, **batch}:
                        yield changes
    if plan.memory_problems and not is_host:
        ranks = 2 * plan.ranks
        while ranks <= min(MOST_RANKS, rows * plan.ranks):
            yield {"parallel.ranks": ranks, "parallel.zero": 3}
            yield {"parallel.ranks": ranks, "parallel.zero": 3, "parallel.precision": "bfloat16", "parallel.recompute": "blocks"}
            ranks *= 2


def _changed(settings: RunSettings, changes: Changes) -> RunSettings:
    values = settings.model_dump()
    for key, value in changes.items():
        section = values
        *path, name = key.split(".")
        for part in path:
            section = section[part]
        section[name] = value
    return RunSettings.model_validate(values)


def _shown(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text
