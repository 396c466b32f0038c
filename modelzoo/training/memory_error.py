"""Memory that runs out in the middle of a run, said with what was being computed and what to set."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from modelzoo.errors import OutOfMemoryError
from modelzoo.training.step import MicroBatch

__all__ = ["EVALUATION_ADVICE", "STEP_ADVICE", "memory_watched"]

EVALUATION_ADVICE = "lower evaluation.batch_tokens"
STEP_ADVICE = "lower train.micro_batch_size, set parallel.recompute, or give memory.host and memory.disk.path"

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators say it where they have no class for it."""


@contextmanager
def memory_watched(
    doing: str, batches: Sequence[MicroBatch], advice: str, details: Callable[[], Sequence[str]] = list
) -> Iterator[None]:
    """Raise one clear error where memory does not suffice. Not collective: the ranks tell each other as of any error.

    Args:
        doing: What the block does: "step 4".
        batches: Its micro-batches, if they are known.
        advice: What to set so that it takes less.
        details: Gives more lines for the error.

    Raises:
        OutOfMemoryError: An allocation of the block failed. A process that the kernel kills for its memory cannot say anything.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(sign in str(error) for sign in _SIGNS):
            raise
        shapes = [tensor.shape for batch in batches for tensor in batch.tensors.values() if tensor.dim() > 1]
        largest = f"; its largest micro-batch is {' x '.join(map(str, max(shapes, key=math.prod)))} values" if shapes else ""
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        lines = [
            f"cause        {cause}",
            *details(),
            f"the last checkpoint is intact; {advice}; `modelzoo plan` shows what would fit",
        ]
        raise OutOfMemoryError("\n  ".join([f"{doing}: memory ran out{largest}", *lines])) from error
