"""The plan of a run before anything is allocated: what goes where, how long a step takes, and whether it fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.config import MemoryConfig, ParallelConfig, RunSettings
from modelzoo.plan.layout import cut_of, resolve_for
from modelzoo.plan.line import Line
from modelzoo.plan.machine import Machine
from modelzoo.plan.memory import MemoryPlan, plan_memory
from modelzoo.plan.parts import ModelParts
from modelzoo.plan.tier_memory import recipe_budget
from modelzoo.plan.time import TimePlan, plan_time
from modelzoo.plan.traffic import TrafficPlan, plan_traffic
from modelzoo.plan.workload import Workload, evaluated_tokens, workload_of

__all__ = ["Plan", "plan_run", "plan_workload"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What one rank of a run takes and how long its steps are."""

    model: ModelParts
    machine: Machine
    ranks: int
    layout: ParallelConfig
    """With every `auto` decided."""
    work: Workload
    memory: MemoryPlan
    traffic: TrafficPlan
    time: TimePlan
    checkpoint_bytes: int
    """On disk, of all ranks together: the training states that are kept at a time, one being written, and the final model."""
    checkpoint_how: str = ""
    budget_bytes: int = 0
    """Of the tier that a rank computes in."""

    @property
    def peak_bytes(self) -> int:
        """Of the tier that a rank computes in."""
        return self.memory.peak(self.machine.tier)

    @property
    def fits(self) -> bool:
        """Whether all tiers have the room."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not fit."""
        return (*self.memory_problems, *self.disk_problems)

    @property
    def memory_problems(self) -> tuple[str, ...]:
        """What does not fit into memory."""
        found = list(self.memory.problems)
        for tier, budget in self.budgets.items():
            over = self.memory.peak(tier) - budget
            if budget and over > 0 and not found:
                found.append(f"{tier}: {_gib(self.memory.peak(tier))} of {_gib(budget)}, short by {_gib(over)}")
        return tuple(found)

    @property
    def disk_problems(self) -> tuple[str, ...]:
        """What does not fit onto the disk: checkpoints and tiers."""
        room = self.machine.disk_bytes
        needed = self.checkpoint_bytes + self.memory.peak("disk")
        if room is None or needed <= room:
            return ()
        return (
            f"disk: {_gib(needed)} for checkpoints and tiers of {_gib(room)} free, short by {_gib(needed - room)}; use another "
            "output.folder",
        )

    @property
    def budgets(self) -> dict[str, int]:
        """Bytes by tier."""
        found = {self.machine.tier: self.budget_bytes}
        if self.machine.kind == "cuda":
            found["host"] = self.machine.host_memory
        return found

    @property
    def smallest_bytes(self) -> int:
        """The least budget of the computing tier with which these settings would run."""
        return self.memory.smallest_bytes

    @property
    def tokens_per_second(self) -> float:
        """Of one rank; ranks of a tensor axis share theirs."""
        return self.work.step_tokens / self.time.step / self.layout.tensor

    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return the lines of memory by tier."""
        return dict(self.memory.tiers)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "model": {"family": self.model.family, "task": self.model.task, "parameters": self.model.numel},
            "machine": self.machine.name,
            "ranks": self.ranks,
            "layout": self.layout.model_dump(exclude={"ranks", "timeout_s"}),
            "micro_batch": {"rows": self.work.rows, "tokens": self.work.batch_tokens, "of_a_step": self.work.micro_batches},
            "tiers": {
                tier: {
                    "budget_bytes": self.budgets.get(tier),
                    "peak_bytes": self.memory.peak(tier),
                    "lines": {line.name: line.size_bytes for line in lines},
                }
                for tier, lines in self.memory.tiers.items()
            },
            "peak_moment": self.memory.peak_moment,
            "smallest_bytes": self.smallest_bytes,
            "sent_bytes": dict(self.traffic.between_ranks),
            "bus_bytes_a_step": {pair: size for pair, size in self.traffic.by_pair.items() if "device" in pair},
            "disk_bytes_a_step": {"read": self.traffic.disk_read, "written": self.traffic.disk_written},
            "step_seconds": self.time.step,
            "seconds": dict(self.time.seconds),
            "bound": self.time.bound,
            "tokens_per_second": self.tokens_per_second,
            "checkpoint_bytes": self.checkpoint_bytes,
            "fits": self.fits,
            "problems": list(self.problems),
        }


def plan_run(
    settings: RunSettings,
    model: ModelParts,
    machine: Machine,
    *,
    ranks: int = 1,
    lengths: Sequence[int] | None = None,
    evaluated: Sequence[int] | None = None,
) -> Plan:
    """Plan a recipe; `layout` of the plan has every `auto` decided.

    Args:
        settings: Of the run.
        model: Of `read_parts`.
        machine: Where it is to run.
        ranks: Processes.
        lengths: Tokens of each training row; without them every row is as long as it may be.
        evaluated: Tokens of each row that is evaluated; None takes a forward as large as evaluation.batch_tokens allows.

    Raises:
        ConfigError: The layout does not fit the ranks.
    """
    if settings.parallel.recompute != "auto":
        return _plan_settings(settings, model, machine, ranks, lengths, evaluated)
    # The backward reaches the first blocks last, when all others have let go of their activations; so of two equal numbers of
    # blocks that are computed again the first ones make the lower peak.
    plans: list[Plan] = []
    count = len(model.blocks)
    for number in range(count + 1):
        how = "none" if not number else "blocks" if number == count else f"first {number}"
        parallel = settings.parallel.model_copy(update={"recompute": how})
        plan = _plan_settings(settings.model_copy(update={"parallel": parallel}), model, machine, ranks, lengths, evaluated)
        plans.append(plan)
        if not plan.memory_problems and not plan.memory.peak("disk"):
            break  # more blocks would only take longer; with a disk tier they leave memory to states, which then do not move
    fitting = [plan for plan in plans if not plan.memory_problems]
    return min(fitting, key=lambda each: each.time.step) if fitting else min(plans, key=lambda each: each.smallest_bytes)


def _plan_settings(
    settings: RunSettings,
    model: ModelParts,
    machine: Machine,
    ranks: int,
    lengths: Sequence[int] | None,
    evaluated: Sequence[int] | None,
) -> Plan:
    layout = resolve_for(settings.parallel, model, ranks, machine.budget)
    work = workload_of(
        settings,
        data_ranks=ranks // layout.tensor,
        max_length=model.max_length,
        is_host=machine.kind == "host",
        lengths=lengths,
    )
    keep = settings.checkpoint
    states = max(keep.keep_last, 2) + (1 if keep.keep_best else 0) + 1
    return plan_workload(
        model,
        work,
        layout,
        machine,
        ranks=ranks,
        memory=settings.memory,
        evaluation_tokens=_evaluation_tokens(settings, model, work, evaluated),
        kept_states=states,
        final_values=model.trained if settings.adapter.has_file else model.numel,
    )


def _evaluation_tokens(settings: RunSettings, model: ModelParts, work: Workload, evaluated: Sequence[int] | None) -> int:
    """Return the most tokens of one forward of an evaluation; 0 where there is none."""
    if evaluated is None and settings.data.validation is None and settings.data.name is None:
        return 0
    most = evaluated_tokens(settings.evaluation.batch_tokens, model.vocab_size if model.is_language_model else None)
    if evaluated is None:
        return max(most, *work.lengths)
    return max(min(most, sum(evaluated)), max(evaluated, default=0))


def plan_workload(
    model: ModelParts,
    work: Workload,
    layout: ParallelConfig,
    machine: Machine,
    *,
    ranks: int = 1,
    memory: MemoryConfig | None = None,
    evaluation_tokens: int = 0,
    kept_states: int = 3,
    final_values: int | None = None,
) -> Plan:
    """Plan a rank's work, of a recipe or of any other program that computes in the same way.

    Args:
        model: Of `read_parts`.
        work: Of a rank.
        layout: With every `auto` decided.
        machine: Where.
        ranks: Processes.
        memory: Budgets of the tiers.
        evaluation_tokens: Of one evaluation forward; 0 for none.
        kept_states: Training states that are on disk at a time; a frozen base is not part of them.
        final_values: Values that the run writes at its end; None for the whole model.
    """
    cut = cut_of(layout)
    final = model.numel if final_values is None else final_values
    held = plan_memory(model, work, cut, memory or MemoryConfig(), machine, evaluation_tokens=evaluation_tokens)
    traffic = plan_traffic(model, work, cut, held)
    state = 4 * model.trained + model.moment_bytes if work.has_small_moments else 12 * model.trained
    shown = f"{state:,}" if work.has_small_moments else f"{model.trained:,} x 12"
    return Plan(
        model=model,
        machine=machine,
        ranks=ranks,
        layout=layout,
        work=work,
        memory=held,
        traffic=traffic,
        time=plan_time(model, work, cut, traffic, held, machine),
        checkpoint_bytes=kept_states * state + 4 * final,
        checkpoint_how=f"{kept_states} states x {shown} bytes, and {final:,} x 4 at the end",
        budget_bytes=min(machine.budget, recipe_budget(memory or MemoryConfig(), machine) or machine.budget),
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
