"""The plan of a run beside what came of it: made before its model is read, compared when it has ended."""

import dataclasses
import logging
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modelzoo.config import RunSettings
from modelzoo.errors import ConfigError
from modelzoo.models.model import Model
from modelzoo.plan import Machine, Plan, find_machine, plan_run, probe_products, read_parts
from modelzoo.runtime import Report, World, raise_together, readable_size
from modelzoo.runtime.memory import free_bytes, resident_bytes
from modelzoo.runtime.tiers.attach import AUTO_SHARE
from modelzoo.training.attempt import attempt
from modelzoo.training.step import Dataset

__all__ = ["Outcome", "compare", "decide_recompute", "forecast", "planned_picture"]

log = logging.getLogger(__name__)

PROBE_S = 0.02
LATER_BYTES = 47 * 2**20
"""What a run imports and starts after it is planned: 29 MiB of torch's compiler front, 18 MiB of kernels' code (see `reserve`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Predicted and measured figures of rank 0; 0 for what was not measured."""

    predicted_bytes: int
    measured_bytes: int
    predicted_step_s: float
    measured_step_s: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return a line for memory and one for time."""
        rows = [
            ("plan", "peak", readable_size(self.predicted_bytes), readable_size(self.measured_bytes), self._error("bytes")),
            ("", "a step", f"{self.predicted_step_s:.3g} s", f"{self.measured_step_s:.3g} s", self._error("step_s")),
        ]
        return "\n".join(
            ["", *(f"{a:<8} {b:<7} {c:>10}   measured {d:>10}   {e}" for a, b, c, d, e in rows), f"         bound by {self.bound}"]
        )

    def _error(self, what: str) -> str:
        predicted, measured = getattr(self, f"predicted_{what}"), getattr(self, f"measured_{what}")
        return f"plan {predicted / measured - 1:+.0%}" if measured else "not measured"


def forecast(settings: RunSettings, model: Model, dataset: Dataset, world: World, *, evaluated: Sequence[int]) -> Plan | None:
    """Return the plan of this rank of a run, with the lengths of its rows and this machine's matrix products; draws no number.

    Args:
        settings: Of the run.
        model: On meta.
        dataset: Whose lengths are known.
        world: The processes.
        evaluated: Tokens of each row that is evaluated.
    """
    parts = read_parts(model)
    machine = _this_machine()
    machine = probe_products(machine, hidden_size=min(parts.hidden_size, 1024), tokens=128, seconds=PROBE_S)
    try:
        return plan_run(settings, parts, machine, ranks=world.world_size, lengths=dataset.lengths, evaluated=evaluated)
    except ConfigError as error:  # the run itself says what does not fit
        log.info("no plan: %s", error)
        return None


def decide_recompute(
    settings: RunSettings, model: Model, dataset: Dataset, world: World, *, evaluated: Sequence[int]
) -> RunSettings:
    """Return the settings with `parallel.recompute: auto` decided by what is free on rank 0; others as they are. Collective.

    Args:
        settings: Of the run.
        model: On meta.
        dataset: Whose lengths are known.
        world: The processes.
        evaluated: Tokens of each row that is evaluated.

    Raises:
        ConfigError: The layout does not fit the ranks.
    """
    if settings.parallel.recompute != "auto":
        return settings
    found, error = attempt(lambda: _chosen(settings, model, dataset, world, evaluated)) if world.is_main else (None, None)
    raise_together(world, error)
    parallel = settings.parallel.model_copy(update={"recompute": world.broadcast(found)})
    return settings.model_copy(update={"parallel": parallel})


def _chosen(settings: RunSettings, model: Model, dataset: Dataset, world: World, evaluated: Sequence[int]) -> str:
    machine = _this_machine()
    room = int(AUTO_SHARE * free_bytes(world.device))
    if machine.kind == "cuda":
        machine = dataclasses.replace(machine, device_memory=room)
    else:
        machine = dataclasses.replace(machine, host_memory=resident_bytes() + room)
    parts = read_parts(model)
    found = plan_run(settings, parts, machine, ranks=world.world_size, lengths=dataset.lengths, evaluated=evaluated)
    return found.layout.recompute


def _this_machine() -> Machine:
    return dataclasses.replace(find_machine("this"), program_bytes=resident_bytes() + LATER_BYTES)


def planned_picture(plan: Plan | None, budget: int | None) -> dict[str, Any] | None:
    """Return what a timeline begins with: bytes by tier, traffic and time of a step as planned.

    Args:
        plan: Of `forecast`.
        budget: Bytes that the settings give to the tier that computes; None for the machine's own.
    """
    if plan is None:
        return None
    budgets = plan.budgets if budget is None else {**plan.budgets, plan.machine.tier: budget}
    return {
        "step_s": plan.time.step,
        "stall_s": plan.time.stall,
        "tiers": {
            tier: {
                "budget_bytes": budgets.get(tier) or None,
                "peak_bytes": plan.memory.peak(tier),
                "lines": {line.name: line.size_bytes for line in lines},
            }
            for tier, lines in plan.lines().items()
        },
        "traffic": plan.traffic.by_pair,
    }


def compare(plan: Plan, found: Report, world: World) -> Outcome:
    """Return what was planned beside what was measured.

    Args:
        plan: Of `forecast`.
        found: Of the run's steps.
        world: Says which device.
    """
    if world.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(world.device) + plan.machine.context_bytes
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Outcome(plan.peak_bytes, peak, plan.time.step, sum(found.seconds.values()), plan.time.bound)
