"""What is said where memory ran out: what the plan of the run had counted, and settings that are planned to take less."""

from collections.abc import Callable

from modelzoo.errors import ConfigError
from modelzoo.plan import Plan
from modelzoo.plan.alternatives import Alternative, find_alternatives
from modelzoo.quantities import readable_size
from modelzoo.training.identity import FREE_KEYS, FREE_SECTIONS
from modelzoo.training.job import Job

__all__ = ["less_memory"]

SHOWN = 3
"""Settings that are shown."""


def less_memory(job: Job) -> list[str]:
    """Return lines for an error, none on ranks that have no plan.

    Args:
        job: Whose memory ran out.
    """
    plan = job.plan
    if plan is None:
        return []
    lines = [f"planned      {readable_size(plan.peak_bytes)}: {_largest(plan)}"]
    offered = _smaller(job, plan)[:SHOWN]
    if offered:
        lines.append("any one of these is planned to take less:")
        width = max(len(each.text) for each in offered)
        lines += [f"  {each.text:<{width}}  {_told(each, plan)}" for each in offered]
    if any(job.checkpoints.glob("step-*")) and (free := _smaller(job, plan, may_change=_is_free)):
        lines.append(f"go on with   modelzoo resume {job.checkpoints.parent} {free[0].text}")
    return lines


def _smaller(job: Job, plan: Plan, may_change: Callable[[str], bool] = bool) -> list[Alternative]:
    """Return settings that are planned to take less, the fastest first; none where planning fails."""
    try:
        found = find_alternatives(
            job.settings,
            plan.model,
            plan.machine,
            plan,
            lengths=job.dataset.lengths,
            evaluated=() if job.evaluation is None else job.evaluation.dataset.lengths,
            most=20,
            may_change=may_change,
        )
    except (ConfigError, MemoryError):  # the error that is being told is the one that counts
        return []
    return [each for each in found if each.plan.peak_bytes < plan.peak_bytes]


def _told(each: Alternative, plan: Plan) -> str:
    return f"{readable_size(each.plan.peak_bytes)}, a step {each.plan.time.step / plan.time.step - 1:+.0%}"


def _largest(plan: Plan) -> str:
    lines = sorted(plan.lines()[plan.machine.tier], key=lambda line: -line.size_bytes)[: SHOWN + 1]
    return ", ".join(f"{line.name} {readable_size(line.size_bytes)}" for line in lines)


def _is_free(name: str) -> bool:
    """Return whether a run may be resumed with another value of a setting."""
    section, _, key = name.partition(".")
    return section in FREE_SECTIONS or key in FREE_KEYS.get(section, ())
