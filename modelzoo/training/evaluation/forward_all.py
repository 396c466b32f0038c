"""Running a model over every sample of a data set once, on any number of ranks, longest first and without much padding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo.data import collate, count_targets, micro_batches
from modelzoo.plan.workload import evaluated_tokens
from modelzoo.runtime import World, prepared, reshard
from modelzoo.training.step import Dataset

__all__ = ["EvaluationStopped", "ForwardBatch", "evaluating", "forward_all"]


class EvaluationStopped(Exception):
    """Somebody asked to stop in the middle of an evaluation; all ranks raise it at the same batch."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward of an evaluation."""

    indices: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    num_targets: int
    output: Any
    """The model's output, with `loss` if the samples have targets."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode without gradients, and back into the mode it had."""
    mode = model.training
    model.eval()
    try:
        with torch.no_grad(), prepared(model).traffic.paused():
            yield
    finally:
        reshard(model)
        model.train(mode)


def forward_all(
    model: nn.Module,
    dataset: Dataset,
    world: World,
    *,
    batch_tokens: int,
    vocab_size: int | None = None,
    wants_stop: Callable[[], bool] | None = None,
) -> Iterator[ForwardBatch]:
    """Give a forward for each batch of this rank; together the ranks see every sample once. Collective for sharded models.

    All ranks run the same number of forwards: one that has no batch left runs the shortest again and gives nothing.

    Args:
        model: In evaluation mode.
        dataset: Where samples come from.
        world: The processes.
        batch_tokens: Most tokens of one forward, padding included; a longer sample stands alone.
        vocab_size: Given where the logits are over the vocabulary: bounds the tokens so that they take 256 MiB.
        wants_stop: Asked on every rank before each round of forwards; None never stops.

    Raises:
        EvaluationStopped: Any rank wanted to stop.
    """
    most = evaluated_tokens(batch_tokens, vocab_size)
    pieces = micro_batches(range(len(dataset.lengths)), dataset.lengths, None, most)
    for start in range(0, len(pieces), world.data_size):
        if wants_stop is not None and world.sum([wants_stop()])[0]:
            raise EvaluationStopped
        place = start + world.data_rank
        is_real = place < len(pieces)
        batch = _forward(model, dataset, pieces[place] if is_real else pieces[-1], world.device)
        if is_real:
            yield batch


def _forward(model: nn.Module, dataset: Dataset, indices: Sequence[int], device: torch.device) -> ForwardBatch:
    tensors = collate([dataset.item(index) for index in indices], dataset.pad_id)
    num_targets = count_targets(tensors)
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    return ForwardBatch(tuple(indices), moved, num_targets, model(**moved))
