"""What one rank holds at the moment of its peak, line by line and tier by tier, in closed form.

States, a trained parameter: 4 bytes itself, 4 its gradient, 8 two moments, cut as the layout says (Rajbhandari et al., 2020,
section 3.1, for float32 parameters). Gradients count whole at every moment: allocators (torch's on an accelerator, glibc's
heap for blocks below 32 MiB on a host) keep the pieces that they took for them, and activations do not fit into these; under a
budget, where memory goes back at once, those of a moment count (`tier_moments`). Beside them the peak is the largest of

    the loss             all activations, and what the loss holds for a moment
    block i's backward   activations of blocks 1 to i, its own again where they are computed again, gradients of its widest tensors,
                         and its gradients on their way to other ranks
    the evaluation       scores of its tokens

Working copies are `fully_shard`'s: a block put together, the next one as it came and as it is laid out, and what
is in no block all the time (ZeRO 3); below level 3 everything. Where values live with tiers, `place_units` says, and below an
accelerator `place_below_device`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelzoo.config import MemoryConfig
from modelzoo.plan.activations import UnitActivations, unit_activations
from modelzoo.plan.head_activations import head_activations
from modelzoo.plan.layout import Cut
from modelzoo.plan.line import Line
from modelzoo.plan.machine import Machine
from modelzoo.plan.moments import Moment, StepParts, step_moments, tier_moments
from modelzoo.plan.parts import ModelParts
from modelzoo.plan.tier_memory import host_lines, place, tier_lines
from modelzoo.plan.workload import Workload
from modelzoo.quantities import counted
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.placement import Placement, When, leaves_room

__all__ = ["SMALL_BYTES", "MemoryPlan", "plan_memory"]

HEAP_SLACK = 64 * 2**20
"""Bytes."""
SMALL_BYTES = 16 * 2**20
"""For tensors below 128 KiB, whose memory glibc keeps in pieces, objects of Python, and the code of kernels that only the model
itself uses: 30 steps of the demo with two evaluations grew by 12 MiB beside what is counted."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a rank holds, by tier."""

    tiers: Mapping[str, tuple[Line, ...]]
    peak_moment: str
    smallest_bytes: int
    """Of the tier that a rank computes in: the least with which the recipe could run, the program itself included."""
    placement: Placement | None = None
    """Of the tiers, where the recipe uses them."""
    problems: tuple[str, ...] = field(default=())
    when: When = "step"
    """When the tiers' values are updated."""
    gives_back: bool = False
    """Whether every large tensor's memory goes back to the system with it, so that a budget holds."""
    is_below_device: bool = False
    """Whether the tiers are the host's memory and the disk below an accelerator."""
    reserved_bytes: int = 0
    """What is taken off the budget of the tier that a rank computes in before the tiers share it out."""

    def peak(self, tier: str) -> int:
        """Bytes of a tier at its fullest."""
        return sum(line.size_bytes for line in self.tiers.get(tier, ()))


def plan_memory(
    model: ModelParts, work: Workload, cut: Cut, memory: MemoryConfig, machine: Machine, *, evaluation_tokens: int = 0
) -> MemoryPlan:
    """Return what a rank holds.

    Args:
        model: Its units.
        work: Of a rank.
        cut: Over the ranks.
        memory: Budgets of the tiers.
        machine: Where.
        evaluation_tokens: Of one evaluation forward, where there is one.
    """
    blocks = unit_activations(model, work, tensor=cut.tensor)
    ends = head_activations(model, work, tensor=cut.tensor)
    uses_tiers = memory.is_used
    is_below_device = uses_tiers and machine.kind == "cuda"
    uses_mesh = cut.is_sharded(for_tiers=False)
    step = StepParts(model, work, cut, blocks, *ends, evaluation_tokens)
    # with tiers, what a block's gradients take on their way is part of what their placement counts
    moments = step_moments(step, uses_mesh=uses_mesh and not uses_tiers)
    moment = max(moments, key=lambda each: each.total - (each.gradients if uses_tiers else 0))
    passing = moment.total - moment.gradients
    gives_back = uses_tiers and not is_below_device and (memory.host is not None or memory.device is not None)
    program = Line("program", _program(machine), "what a process takes before there is a model")
    heap = _heap(machine, uses_tiers, gives_back)
    reserved = passing + program.size_bytes + heap.size_bytes
    problems: list[str] = []
    placement = None
    if uses_tiers:
        placement, found = place(model, cut, memory, machine, reserved, problems)
        if gives_back and leaves_room(placement, found, reserved):
            gives_back = False
            heap = _heap(machine, uses_tiers, gives_back)
        elif gives_back:
            moment = max(tier_moments(step, placement, memory), key=lambda each: each.total)
        states = tier_lines(model, cut, placement, memory, found, machine.tier, moment if gives_back else None)
    else:
        states = _plain_lines(model, work, cut, moment, uses_mesh)
    lines = [program, heap, *states, *_passing_lines(moment, blocks, work)]
    smallest = sum(line.size_bytes for line in lines)
    if placement is not None:
        smallest = placement.smallest_bytes + reserved
    tiers = {machine.tier: tuple(line for line in lines if line.size_bytes)}
    if machine.kind == "cuda":
        program = Line("program", machine.program_bytes, "Python, torch, the driver and the tokenized data")
        tiers["host"] = (program, *(host_lines(model, cut, placement) if placement is not None else ()))
    if placement is not None and placement.disk_bytes:
        tiers["disk"] = (Line("states", placement.disk_bytes, "values of blocks that are not in memory, one file a block"),)
    return MemoryPlan(
        tiers,
        moment.name,
        smallest,
        placement,
        tuple(problems),
        memory.optimizer_update,
        gives_back,
        is_below_device,
        reserved,
    )


def _heap(machine: Machine, uses_tiers: bool, gives_back: bool) -> Line:
    """Return what the allocator takes beside tensors."""
    if gives_back or (uses_tiers and machine.kind == "cuda"):
        return Line("small tensors", SMALL_BYTES, "below 128 KiB, Python's objects, code of kernels that is used later")
    slack = HEAP_SLACK if machine.kind == "host" else 0
    return Line("heap", slack, "what glibc keeps free at the top of its heap (mallopt: M_TRIM_THRESHOLD, at most)")


def _program(machine: Machine) -> int:
    return machine.context_bytes if machine.kind == "cuda" else machine.program_bytes


def _plain_lines(model: ModelParts, work: Workload, cut: Cut, moment: Moment, uses_mesh: bool) -> list[Line]:
    held, trained = sum(map(cut.held, model.units)), sum(map(cut.trained, model.units))
    parts = f" / {cut.shard * cut.tensor} ranks" if cut.shard * cut.tensor > 1 else ""
    lines = [
        _parameters(model, held, trained, work.value_bytes, parts),
        Line("gradients", moment.gradients, f"{model.trained:,} x 4 bytes{parts}"),
        _moments_line(model, work, trained, parts),
    ]
    if not uses_mesh:
        return lines
    block = max((cut.whole(unit) for unit in model.blocks), default=0)
    rest, everything = cut.whole(model.units[-1]), sum(map(cut.whole, model.units))
    size = work.value_bytes
    if cut.config.zero == 3:
        lines.append(
            Line("working copies", size * (3 * block + rest), f"(3 x {block:,} of a block + {rest:,} in no block) x {size} bytes")
        )
    else:
        lines.append(Line("working copies", size * everything, f"{everything:,} x {size} bytes, whole below parallel.zero=3"))
    return lines


def _moments_line(model: ModelParts, work: Workload, trained: int, parts: str) -> Line:
    if not work.has_small_moments:
        return Line("moments", 8 * trained, f"{model.trained:,} x 8 bytes{parts} (AdamW's two)")
    whole = model.moment_bytes
    return Line("moments", whole * trained // max(model.trained, 1), f"{model.trained:,} twice in 8 bits, {whole:,} bytes{parts}")


def _parameters(model: ModelParts, held: int, trained: int, value_bytes: int, parts: str) -> Line:
    """Return the line of the parameters; frozen ones are kept as they are computed with."""
    values, stored = model.stored
    frozen = model.numel - model.trained - values
    if not frozen + values:
        return Line("parameters", 4 * held, f"{model.numel:,} x 4 bytes{parts}")
    text = f"({model.trained:,} x 4 and {frozen:,} frozen x {value_bytes}) bytes{parts}"
    text += f" + {values:,} in {stored:,} bytes, whole" if values else ""
    return Line("parameters", 4 * trained + value_bytes * (held - trained) + stored, text)


def _passing_lines(moment: Moment, blocks: Sequence[UnitActivations], work: Workload) -> list[Line]:
    kinds: dict[str, int] = {}
    for block in blocks:
        for kind, size in block.by_kind.items():
            kinds[kind] = kinds.get(kind, 0) + size
    most = ", ".join(f"{kind} {readable_size(size)}" for kind, size in sorted(kinds.items(), key=lambda each: -each[1]) if size)
    shape = f"{counted(work.rows, 'row')}, {counted(work.batch_tokens, 'token')}, recompute {work.recompute}"
    return [
        Line("activations", moment.activations, f"{shape}: {counted(len(blocks), 'block')}: {most}"),
        Line("logits", moment.scores, "what the loss keeps and holds for a moment"),
        Line("workspace", moment.workspace, "gradients of the widest activations, and of a block on their way to other ranks"),
    ]
