"""A plan as text: a table for each tier, the traffic, the time, what fits, and what else one could do."""

from collections.abc import Sequence

from modelzoo.errors import ConfigError, closest
from modelzoo.plan.alternatives import Alternative
from modelzoo.plan.plan import Plan
from modelzoo.quantities import counted
from modelzoo.runtime import readable_size

__all__ = ["explain_line", "plan_text"]

NAMES = {
    "gather": "all-gather of parameters",
    "reduce": "reduce-scatter of gradients",
    "replicate": "all-reduce between groups",
    "tensor": "exchange of activations on the tensor axis",
}


def plan_text(plan: Plan, alternatives: Sequence[Alternative] = (), *, recipe: str = "RECIPE", rows: str = "") -> str:
    """Return the tables.

    Args:
        plan: Of the settings as they are.
        alternatives: Best first.
        recipe: As it was typed.
        rows: What their lengths are taken to be.
    """
    lines = [*_heading(plan, recipe), *([f"rows     {rows}"] if rows else []), ""]
    for tier, found in plan.lines().items():
        lines.append(f"{tier:<24}{'bytes':>10}   how")
        lines += [f"  {line.name:<22}{_size(line.size_bytes):>10}   {_short(line.how)}" for line in found]
        lines.append(f"  {'peak':<22}{_size(plan.memory.peak(tier)):>10}   {_verdict(plan, tier)}")
    lines.append(f"disk for checkpoints    {_size(plan.checkpoint_bytes):>10}   {plan.checkpoint_how}")
    lines += ["", *_movement(plan), *_time(plan), ""]
    if plan.fits:
        lines.append(f"fits     smallest {plan.machine.tier} budget {_size(plan.smallest_bytes)}")
    else:
        lines += [f"too large  {problem}" for problem in plan.problems]
        lines.append(f"           smallest {plan.machine.tier} budget for these settings {_size(plan.smallest_bytes)}")
    lines += _choices(plan, alternatives)
    return "\n".join(lines)


def explain_line(plan: Plan, name: str) -> str:
    """Return the formula and the numbers of one line.

    Args:
        plan: Whose.
        name: Of a line of memory, of a kind of exchange, or of a part of the time.

    Raises:
        ConfigError: There is no such line; the message lists them.
    """
    found: dict[str, list[str]] = {}
    for tier, lines in plan.lines().items():
        for line in lines:
            found.setdefault(line.name, []).append(f"{tier}: {line.name} = {line.size_bytes:,} bytes: {line.how}")
    found["peak"] = [f"{tier}: {plan.memory.peak(tier):,} bytes, at {plan.memory.peak_moment}" for tier in plan.lines()]
    for kind, size in plan.traffic.between_ranks.items():
        found[kind] = [f"{kind}: {size:,} bytes sent a step by a rank: {NAMES[kind]}, of a ring"]
    for kind, how in plan.time.how.items():
        found.setdefault(kind, []).append(f"time: {kind} = {plan.time.seconds[kind]:.4g} s: {how}")
    found["checkpoints"] = [f"disk: {plan.checkpoint_bytes:,} bytes: {plan.checkpoint_how}"]
    if name not in found:
        near = closest(name, found)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"--why {name}: the plan has no such line; {hint}it has {', '.join(found)}")
    return "\n".join(found[name])


def _heading(plan: Plan, recipe: str) -> list[str]:
    layout, work = plan.layout, plan.work
    cut = f"data_shard={layout.data_shard} data_replicate={layout.data_replicate} tensor={layout.tensor} zero={layout.zero}"
    steps = f" x {work.micro_batches} micro-batches" if work.micro_batches > 1 else ""
    precision = f"{work.precision}, compiled" if work.is_compiled else work.precision
    return [
        f"{recipe} · {plan.model.family} for {plan.model.task} · {plan.model.numel:,} parameters, {plan.model.trained:,} trained",
        f"machine  {plan.machine.name} x {counted(plan.ranks, 'rank')} · {precision}",
        f"layout   {cut} recompute={layout.recompute}",
        f"a rank   {counted(work.rows, 'row')}, {counted(work.batch_tokens, 'token')}{steps}",
    ]


def _verdict(plan: Plan, tier: str) -> str:
    budget = plan.budgets.get(tier, 0)
    if not budget:
        return ""
    spare = budget - plan.memory.peak(tier)
    word = f"{_size(spare)} to spare" if spare >= 0 else f"short by {_size(-spare)}"
    moment = f", at {plan.memory.peak_moment}" if tier == plan.machine.tier else ""
    own = " that the recipe allows" if tier == plan.machine.tier and budget < plan.machine.budget else ""
    return f"of {_size(budget)}{own}: {word}{moment}"


def _movement(plan: Plan) -> list[str]:
    rows = [f"{kind} {_size(size)}" for kind, size in plan.traffic.between_ranks.items()]
    lines = [f"sent     {', '.join(rows) or 'nothing'} a step by a rank"]
    if plan.traffic.disk_read or plan.traffic.disk_written:
        lines.append(f"disk     {_size(plan.traffic.disk_read)} read, {_size(plan.traffic.disk_written)} written a step")
    pairs = plan.traffic.by_pair
    if plan.traffic.bus:
        lines.append(f"bus      {_size(pairs['host>device'])} up to the device, {_size(pairs['device>host'])} down a step")
    return lines


def _time(plan: Plan) -> list[str]:
    seconds = ", ".join(f"{name} {_seconds(spent)}" for name, spent in plan.time.seconds.items() if spent)
    return [
        f"a step   {_seconds(plan.time.step)}, bound by {plan.time.bound} · {plan.tokens_per_second:,.0f} tokens/s a rank",
        f"         {seconds}",
    ]


def _choices(plan: Plan, alternatives: Sequence[Alternative]) -> list[str]:
    if not alternatives:
        return [] if plan.fits else ["           no other settings that were planned fit; use more ranks or a larger machine"]
    lines = ["", f"you could   each of these was planned and fits{' into memory' if plan.disk_problems else ''}"]
    width = max(len(each.text) for each in alternatives)
    for each in alternatives:
        time = each.plan.time.step / plan.time.step - 1
        lines.append(f"  {each.text:<{width}}   {_size(each.plan.peak_bytes)}, step {_seconds(each.plan.time.step)} ({time:+.0%})")
    return lines


def _size(size: int) -> str:
    return readable_size(size)


def _seconds(spent: float) -> str:
    return f"{1000 * spent:.1f} ms" if spent < 1 else f"{spent:.2f} s"


def _short(text: str, most: int = 110) -> str:
    return text if len(text) <= most else text[: most - 4] + " ..."
