"""The largest batch of a run, computed after its first step: memory that does not suffice ends a run in its first minute.

It is computed forward and backward, when the moments are there already, and thrown away: no value, no random number and no figure
of the run changes. With tiers it is left out: they keep the room of the largest micro-batch free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from modelzoo.config import RunSettings
from modelzoo.data import BatchStream
from modelzoo.runtime import World, collect_random_state, prepared, raise_together, restore_random_state
from modelzoo.training.attempt import attempt
from modelzoo.training.job import Job
from modelzoo.training.less_memory import less_memory
from modelzoo.training.memory_error import STEP_ADVICE, memory_watched
from modelzoo.training.step import build_micro_batches, try_step

__all__ = ["Largest", "compute_largest", "find_largest"]

LOOKED_AT = 2**20
"""Samples that are looked at, from where the run stands: more would take more than a second."""


@dataclass(frozen=True, slots=True)
class Largest:
    """A batch that is still to come."""

    step: int
    epoch: int
    """From 0."""
    indices: tuple[int, ...]
    """Its samples."""
    tokens: int
    """Real tokens that a process computes at once, at most."""


def find_largest(lengths: Sequence[int], settings: RunSettings, *, position: int, steps: int, data_ranks: int) -> Largest | None:
    """Return the batch of which a process holds the most tokens at once; None where that is the first one or the next.

    Args:
        lengths: Tokens of each sample.
        settings: Of the run.
        position: Samples consumed before the first batch.
        steps: Batches to look at, the first one included.
        data_ranks: Processes that share a batch.
    """
    train = settings.train
    stream = BatchStream(lengths, batch_size=train.batch_size, batch_tokens=train.batch_tokens, seed=train.seed, position=position)
    counts = np.asarray(lengths, dtype=np.int64)
    most, found = 0, None
    for step in range(1, steps + 1):
        indices = next(stream)
        longest = np.sort(counts[indices])[::-1]
        rows = len(longest) if train.micro_batch_size is None else train.micro_batch_size * data_ranks
        tokens = -(-int(longest[:rows].sum()) // data_ranks)
        if step == 1:
            most = tokens
        elif tokens > most:
            most, found = tokens, Largest(step, stream.epoch, tuple(indices), tokens)
        if stream.position - position >= LOOKED_AT:
            break
    return found if found is not None and found.step > 2 else None


def compute_largest(job: Job, largest: Largest, step: int, world: World) -> str:
    """Compute a batch that is still to come, throw its gradients away, and return a line that says so. Collective.

    Args:
        job: Between two steps.
        largest: The batch.
        step: Its number in the run.
        world: The processes.

    Raises:
        OutOfMemoryError: It does not fit.
    """
    max_rows = job.settings.train.micro_batch_size
    batches, error = attempt(
        lambda: build_micro_batches(job.dataset, largest.indices, epoch=largest.epoch, world=world, max_rows=max_rows)
    )
    raise_together(world, error)
    assert batches is not None
    doing = f"step {step}, the largest to come"
    random_state = collect_random_state()
    with prepared(job.model).traffic.paused(), memory_watched(doing, batches, STEP_ADVICE, partial(less_memory, job)):
        try_step(job.model, job.optimizer, batches, world=world, doing=doing)
    restore_random_state(random_state)
    rows = f"{len(largest.indices)} rows, {largest.tokens:,} tokens of a process at once"
    return f"memory   the largest batch to come was computed and fits: step {step}, {rows}"
