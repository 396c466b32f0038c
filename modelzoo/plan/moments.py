"""What exists at each moment of a step, so that the fullest can be found: activations, scores, gradients, units that are whole.

Under a budget the memory of every tensor goes back at once, so that gradients take the place that activations leave. With U the
values of a block, P those of its largest parameter and R those in no block there are, beside what the tiers hold all the time, on
one process

    the forward, the loss         the slot of what is in no block, R, where it comes from below
    block i's backward            the same, the gradients of a table that scores words, and its first two gradients, 2 P
    block i's gradients           all of them where they stay in memory or the update takes them together, U
    the backward of embeddings    gradients of what is in no block, R, those of the table, and the sum of both

and sharded

    the start of the forward      R, and its slot where it comes from below
    the loss                      R
    block i's backward            R, the gradients of a table that scores words, block i, and the buffer in which the gradients of
                                  the block before were reduced, which goes with the next reduction: 2 U; on many ranks the next
                                  block too, U
    block i's gradients           they, their buffer and the result of the reduction, 3 U, when its activations are gone
    the backward of embeddings    R, its gradients, and second ones that are added to them, 3 R, and the buffer of the last block
    the optimizer's step          R in its slot, where it comes from below
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from modelzoo.config import MemoryConfig
from modelzoo.plan.activations import UnitActivations
from modelzoo.plan.layout import Cut
from modelzoo.plan.parts import ModelParts
from modelzoo.plan.workload import Workload
from modelzoo.runtime.tiers.placement import SCRATCH_BYTES, VALUE_BYTES, Placement, slot_bytes
from modelzoo.runtime.tiers.worker import WORKERS

__all__ = ["Moment", "StepParts", "step_moments", "tier_moments"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes that differ between the moments of a step."""

    name: str
    activations: int
    scores: int
    workspace: int
    gradients: int
    copies: int = 0
    """Units that are whole, their gradients on the way, slots and buffers of the tiers."""

    @property
    def total(self) -> int:
        """Of all."""
        return self.activations + self.scores + self.workspace + self.gradients + self.copies


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a rank's step is made of."""

    model: ModelParts
    work: Workload
    cut: Cut
    blocks: Sequence[UnitActivations]
    """Activations of the blocks."""
    first: UnitActivations
    """Of embeddings."""
    last: UnitActivations
    """Of the last norm, the head and the loss."""
    evaluation_tokens: int = 0
    """Of one evaluation forward; 0 for none."""

    @property
    def kept(self) -> int:
        """Activations that are kept when the loss is computed, but the loss's own."""
        return self.first.kept + sum(block.kept for block in self.blocks)

    def evaluation(self, gradients: int, copies: int = 0) -> list[Moment]:
        """Return the evaluation's moment, with its scores and widest tensors, if there is an evaluation.

        Args:
            gradients: Bytes that are there meanwhile.
            copies: As of `Moment`.
        """
        if not self.evaluation_tokens:
            return []
        words = self.model.vocab_size if self.model.is_language_model else self.model.num_labels
        scores = self.evaluation_tokens * -(-words // self.cut.tensor) * (self.work.value_bytes + 8)
        widest = max((block.work for block in self.blocks), default=0) * self.evaluation_tokens // max(self.work.batch_tokens, 1)
        return [Moment("the evaluation", 0, scores, widest // 2, gradients, copies)]


def step_moments(step: StepParts, *, uses_mesh: bool) -> list[Moment]:
    """Return the moments at which a rank may be fullest, where an allocator keeps the memory of gradients.

    Args:
        step: Its parts.
        uses_mesh: Whether gradients are made whole and exchanged.
    """
    model, work, cut = step.model, step.work, step.cut
    assert cut.config.zero != "auto"
    is_whole = work.micro_batches > 1 and cut.config.zero < 2
    everything = 4 * sum(cut.trained(unit, whole=is_whole) for unit in model.units)
    # a block's gradients as the backward makes them, and a float32 copy that is exchanged
    passing = [(work.value_bytes + 4) * cut.trained(unit, whole=True) if uses_mesh else 0 for unit in model.units]
    kept = step.kept
    found = [Moment("the loss", kept, step.last.kept + step.last.again, 0, everything)]
    for number in range(len(step.blocks) - 1, -1, -1):
        block, unit = step.blocks[number], model.blocks[number]
        here = kept + block.again
        found.append(Moment(f"the backward of {unit.name}", here, 0, block.work + passing[number], everything))
        kept -= block.kept
    found.append(Moment("the backward of the embeddings", step.first.kept, 0, passing[-1] + step.first.work, everything))
    found.append(Moment("the optimizer's step", 0, 0, 0, everything))
    return found + step.evaluation(everything)


def tier_moments(step: StepParts, placement: Placement, memory: MemoryConfig) -> list[Moment]:
    """Return the moments at which a rank with tiers may be fullest, where the memory of every tensor goes back at once.

    Args:
        step: Its parts.
        placement: Where values live.
        memory: Budgets of the tiers.
    """
    copies = (_Copies if step.cut.shared_by is not None else _CopiesInPlace)(step, placement, memory)
    kept, first, last = step.kept, step.first, step.last
    found = [
        Moment("the start of the forward", 0, 0, 0, copies.gradients(0), copies.start()),
        Moment("the loss", kept, last.kept + last.again, 0, copies.gradients(), copies.loss()),
    ]
    for number in range(len(step.blocks) - 1, -1, -1):
        block, name = step.blocks[number], step.model.blocks[number].name
        before, gradients = kept - block.kept, copies.gradients(number + 1)
        found.append(Moment(f"the backward of {name}", kept + block.again, 0, block.work, gradients, copies.backward(number)))
        found.append(Moment(f"the gradients of {name}", before, 0, 0, gradients, copies.reduction(number)))
        kept = before
    found.append(
        Moment(
            "the backward of the embeddings", first.kept, 0, first.work, copies.gradients(0, has_rest=False), copies.embeddings()
        )
    )
    found.append(Moment("the optimizer's step", 0, 0, 0, copies.gradients(0), copies.step()))
    return found + step.evaluation(0, copies.evaluation())


class _Copies:
    """Bytes of gradients, and of units that are whole, at the moments of a step with tiers.

    Args:
        step: Whose.
        placement: Where values live.
        memory: Budgets of the tiers.
    """

    def __init__(self, step: StepParts, placement: Placement, memory: MemoryConfig) -> None:
        model, work, cut = step.model, step.work, step.cut
        self.sizes = [cut.tier_sizes(unit) for unit in model.units]
        self.blocks, self.rest = self.sizes[:-1], self.sizes[-1]
        self.value, self.accumulates = work.value_bytes, work.micro_batches > 1
        self.is_shared = cut.shard * cut.config.data_replicate > 1
        self.updates_at_once = memory.optimizer_update == "in_backward"
        is_away = [homes["parameters"] != "memory" for homes in placement.homes]
        has_disk = placement.disk_bytes > 0
        slots = slot_bytes(self.blocks, memory.slots) if any(is_away[:-1]) else 0
        self.always = slots + (SCRATCH_BYTES if has_disk else 0)
        self.rest_slot = VALUE_BYTES * self.rest.shard if is_away[-1] else 0
        self.kept = [
            VALUE_BYTES * size.trained if homes["gradients"] == "memory" and not self.updates_at_once else 0
            for size, homes in zip(self.sizes, placement.homes, strict=True)
        ]
        table = model.vocab_size * model.table_size // cut.tensor if model.is_language_model and model.trains_scores[0] else 0
        self.table = min(table, self.rest.whole)
        self.largest = [max(map(math.prod, unit.shapes), default=0) for unit in model.blocks]

    def gradients(self, first: int | None = None, *, has_rest: bool = True) -> int:
        """Return those in memory: of blocks from one on (None for none), and of what is in no block; all where they add up."""
        if self.accumulates:
            return sum(self.kept)
        return 0 if first is None else sum(self.kept[first:-1]) + (self.kept[-1] if has_rest and not first else 0)

    def start(self) -> int:
        return self.always + self.value * self.rest.whole + self.rest_slot

    def loss(self) -> int:
        return self.always + self.value * self.rest.whole

    def backward(self, number: int) -> int:
        """Return what is whole when a block's backward begins."""
        block = self.blocks[number].whole
        following = self.value * self.blocks[number - 1].whole if self.is_shared and number else 0
        return self._beside_blocks(number) + (self.value + VALUE_BYTES) * block + following

    def reduction(self, number: int) -> int:
        """Return what is whole when a block's gradients are there: with its own buffer, or with the result of the reduction."""
        block = self.blocks[number].whole
        following = self.value * self.blocks[number - 1].whole if self.is_shared and number else 0
        return self._beside_blocks(number) + 3 * VALUE_BYTES * block + following

    def _beside_blocks(self, number: int) -> int:
        return self.always + self.value * (self.rest.whole + self.table) + self._updating(number + 1)

    def _updating(self, first: int) -> int:
        """Return the gradients that are kept for an update in the backward, of blocks from one on."""
        sizes = [size.shard for size in self.blocks[first:]] if self.updates_at_once else []
        return VALUE_BYTES * sum(heapq.nlargest(WORKERS, sizes))

    def embeddings(self) -> int:
        rest, block = self.rest.whole, self.blocks[0].whole if self.blocks else 0
        return self.always + max(3 * VALUE_BYTES * rest, 3 * self.value * rest + VALUE_BYTES * block)

    def step(self) -> int:
        return self.always + self.rest_slot

    def evaluation(self) -> int:
        block = max((size.whole for size in self.blocks), default=0)
        return self.always + self.value * (self.rest.whole + (1 + self.is_shared) * block)


class _CopiesInPlace(_Copies):
    """The same where one process computes on the slots: no unit is put together."""

    def start(self) -> int:
        return self.step()

    def loss(self) -> int:
        return self.step()

    def backward(self, number: int) -> int:
        return self._beside_blocks(number) + 2 * VALUE_BYTES * self.largest[number]

    def reduction(self, number: int) -> int:
        stay = self.updates_at_once or self.kept[number] > 0
        return self._beside_blocks(number) + VALUE_BYTES * (self.blocks[number].trained if stay else self.largest[number])

    def _beside_blocks(self, number: int) -> int:
        return self.step() + VALUE_BYTES * self.table + self._updating(number + 1)

    def embeddings(self) -> int:
        return self.step() + VALUE_BYTES * (self.rest.trained + 2 * self.table) + self._updating(0)

    def evaluation(self) -> int:
        return self.step()
