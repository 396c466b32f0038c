"""The timeline of a step as text: a line a moment, a bar of what memory holds, and what the plan said beside what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.recorded import RecordedStep, Sample
from modelzoo.runtime.tiers.timeline import Timeline

__all__ = ["timeline_lines"]

LETTERS = {
    "program": ".",
    "parameters": "P",
    "gradients": "G",
    "moments": "M",
    "working copies": "w",
    "slots": "s",
    "buffers": "b",
    "activations": "a",
}
PAIRS = {"disk>host": "read", "host>disk": "written", "host>device": "up", "device>host": "down"}
WIDTH = 48
ROWS = 20
"""Most moments of the picture."""


def timeline_lines(timeline: Timeline) -> list[str]:
    """Return the last recorded step as lines; none where no step was.

    Args:
        timeline: Of a run.
    """
    if not timeline.complete:
        return []
    step = timeline.complete[-1]
    peak = step.peak
    used = [kind for kind in LETTERS if any(sample.here.get(kind) for sample in step.samples)]
    legend = "  ".join(f"{LETTERS[kind]} {kind}" for kind in used)
    names = max(len(_name(sample)) for sample in step.samples)
    lines = [
        "",
        f"step {step.number}   {step.seconds:.3g} s, of which the model waited {step.samples[-1].stall_s:.3g} s   {legend}",
    ]
    for sample in _chosen(step):
        bar = "".join(LETTERS[kind] * _cells(sample, kind, peak.total) for kind in used)
        moved = sum(sample.traffic.values())
        mark = "  fullest" if sample is peak else ""
        lines.append(
            f"{sample.time_s - step.start_s:8.3f} s  {_name(sample):<{names}}  {readable_size(sample.total):>10}  {bar:<{WIDTH}}  "
            f"{readable_size(moved):>10} moved{mark}"
        )
    return lines + _comparison(step, timeline.planned)


def _name(sample: Sample) -> str:
    return f"{sample.event} {sample.unit}".strip()


def _cells(sample: Sample, kind: str, most: int) -> int:
    """Return how long a kind's part of the bar is; parts that end at equal bytes end at one place."""
    before = 0
    for name in LETTERS:
        if name == kind:
            break
        before += sample.here.get(name, 0)
    return round(WIDTH * (before + sample.here.get(kind, 0)) / max(most, 1)) - round(WIDTH * before / max(most, 1))


def _chosen(step: RecordedStep) -> Sequence[Sample]:
    """Return moments at equal distances, with the fullest, the loss and both ends."""
    samples = step.samples
    if len(samples) <= ROWS:
        return samples
    wanted = {0, len(samples) - 1, samples.index(step.peak)}
    wanted |= {number for number, sample in enumerate(samples) if sample.event in ("loss", "update")}
    wanted |= {round(place * (len(samples) - 1) / (ROWS - 4)) for place in range(ROWS - 3)}
    return [samples[number] for number in sorted(wanted)]


def _comparison(step: RecordedStep, planned: Mapping[str, Any] | None) -> list[str]:
    if planned is None:
        return []
    tier = next(iter(step.peak.resident))
    rows = [("memory", planned["tiers"][tier]["peak_bytes"], step.peak.total)]
    rows += [(PAIRS[pair], planned["traffic"].get(pair, 0), found) for pair, found in step.traffic.items()]
    lines = [
        f"         {name:<8} plan {readable_size(plan):>10}   measured {readable_size(found):>10}{_error(plan, found)}"
        for name, plan, found in rows
        if plan or found
    ]
    seconds = planned["step_s"]
    both = f"plan {seconds:8.3g} s   measured {step.seconds:8.3g} s{_error(seconds, step.seconds)}"
    return [*lines, f"         {'step':<8} {both}"]


def _error(planned: float, found: float) -> str:
    return f"   plan {planned / found - 1:+.0%}" if found else ""
