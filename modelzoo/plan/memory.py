"""What one rank holds at the moment of its peak, line by line and tier by tier, in closed form.

States, a trained parameter: 4 bytes itself, 4 its gradient, 8 two moments, cut as the layout says (Rajbhandari et al., 2020,
section 3.1, for float32 parameters). Gradients count whole at every moment: allocators (torch's on an accelerator, glibc's
heap for blocks below 32 MiB on a host) keep the pieces that they took for them, and activations do not fit into these. Beside them
the peak is the largest of

    the loss             all activations, and what the loss holds for a moment
    block i's backward   activations of blocks 1 to i, its own again where they are computed again, gradients of its widest tensors,
                         and its gradients on their way to other ranks
    the evaluation       scores of its tokens

Working copies are `fully_shard`'s: a block put together, the next one as it came and as it is laid out, and what
is in no block all the time (ZeRO 3); below level 3 everything. With tiers it is the formula of `place_units`, below an accelerator
that of `place_below_device`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelzoo.config import MemoryConfig
from modelzoo.plan.activations import UnitActivations, head_activations, unit_activations
from modelzoo.plan.layout import Cut
from modelzoo.plan.line import Line
from modelzoo.plan.machine import Machine
from modelzoo.plan.parts import ModelParts
from modelzoo.plan.tier_memory import host_lines, place, tier_lines
from modelzoo.plan.workload import Workload
from modelzoo.quantities import counted
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.placement import Placement, When

__all__ = ["MemoryPlan", "Moment", "plan_memory"]

HEAP_SLACK = 64 * 2**20
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes that differ between the moments of a step."""

    name: str
    activations: int
    scores: int
    workspace: int
    gradients: int

    @property
    def total(self) -> int:
        """Of all four."""
        return self.activations + self.scores + self.workspace + self.gradients


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
    uses_mesh = cut.config.data_replicate * cut.shard * cut.tensor > 1 or work.precision != "float32" or uses_tiers
    # what a block's gradients take on their way is part of what the tiers' placement counts
    moments = _moments(model, work, cut, blocks, ends, uses_mesh and not uses_tiers, evaluation_tokens)
    moment = max(moments, key=lambda each: each.total - (each.gradients if uses_tiers else 0))
    passing = moment.total - moment.gradients
    lines = [Line("program", _program(machine), "what a process takes before there is a model")]
    if machine.kind == "host" and not uses_tiers:  # for the tiers glibc is told to give freed tensors back at once
        lines.append(Line("heap", HEAP_SLACK, "what glibc keeps free at the top of its heap (mallopt: M_TRIM_THRESHOLD, at most)"))
    beside = sum(line.size_bytes for line in lines)
    problems: list[str] = []
    placement = None
    if uses_tiers:
        placement, found = place(model, cut, memory, machine, passing + beside, problems)
        lines += tier_lines(model, cut, placement, memory, found, machine.tier)
    else:
        lines += _plain_lines(model, work, cut, moment, uses_mesh)
    lines += _passing_lines(moment, blocks, work)
    smallest = sum(line.size_bytes for line in lines)
    if placement is not None:
        smallest = placement.smallest_bytes + passing + beside
    tiers = {machine.tier: tuple(line for line in lines if line.size_bytes)}
    if machine.kind == "cuda":
        program = Line("program", machine.program_bytes, "Python, torch, the driver and the tokenized data")
        tiers["host"] = (program, *(host_lines(model, cut, placement) if placement is not None else ()))
    if placement is not None and placement.disk_bytes:
        tiers["disk"] = (Line("states", placement.disk_bytes, "values of blocks that are not in memory, one file a block"),)
    gives_back = uses_tiers and (memory.host is not None or memory.device is not None)
    gives_back = gives_back and not is_below_device
    return MemoryPlan(
        tiers, moment.name, smallest, placement, tuple(problems), memory.optimizer_update, gives_back, is_below_device
    )


def _program(machine: Machine) -> int:
    return machine.context_bytes if machine.kind == "cuda" else machine.program_bytes


def _moments(
    model: ModelParts,
    work: Workload,
    cut: Cut,
    blocks: Sequence[UnitActivations],
    ends: tuple[UnitActivations, UnitActivations],
    uses_mesh: bool,
    evaluation_tokens: int,
) -> list[Moment]:
    """Return the moments at which a rank may be fullest."""
    first, last = ends
    assert cut.config.zero != "auto"
    is_whole = work.micro_batches > 1 and cut.config.zero < 2
    gradients = [4 * cut.trained(unit, whole=is_whole) for unit in model.units]
    everything = sum(gradients)
    # a block's gradients as the backward makes them, and a float32 copy that is exchanged
    passing = [(work.value_bytes + 4) * cut.trained(unit, whole=True) if uses_mesh else 0 for unit in model.units]
    kept = first.kept + sum(block.kept for block in blocks)
    found = [Moment("the loss", kept, last.kept + last.again, 0, everything)]
    for number in range(len(blocks) - 1, -1, -1):
        block, unit = blocks[number], model.blocks[number]
        here = kept + block.again
        found.append(Moment(f"the backward of {unit.name}", here, 0, block.work + passing[number], everything))
        kept -= block.kept
    found.append(Moment("the backward of the embeddings", first.kept, 0, passing[-1] + first.work, everything))
    found.append(Moment("the optimizer's step", 0, 0, 0, everything))
    if evaluation_tokens:
        words = model.vocab_size if model.is_language_model else model.num_labels
        scores = evaluation_tokens * -(-words // cut.tensor) * (work.value_bytes + 8)
        widest = max((block.work for block in blocks), default=0) * evaluation_tokens // max(work.batch_tokens, 1)
        found.append(Moment("the evaluation", 0, scores, widest // 2, everything))
    return found


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
