"""One optimizer step: a global batch, cut into micro-batches, as exact as one big forward would be.

The loss of the step is the mean over all supervised targets of the global batch, whatever the cut and the number of ranks: each
micro-batch counts with its own number of targets over that of the whole batch, and gradients are added up over micro-batches and
ranks. This module is the one place that owns that denominator.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.data import collate, count_targets, micro_batches, split_among
from modelzoo.errors import NonFiniteError
from modelzoo.runtime import World, accumulating, clip_grad_norm, local_values, mark_agreed, prepared
from modelzoo.runtime.tiers import tiers_of
from modelzoo.training.loss_scale import LossScale

__all__ = ["Dataset", "MicroBatch", "StepResult", "build_micro_batches", "take_step", "try_step"]


log = logging.getLogger(__name__)

SHOWN = 4
"""Names of parameters that a warning lists."""


class Dataset(Protocol):
    """What training needs of a data set; `modelzoo.data.Samples` are one."""

    lengths: list[int]
    pad_id: int

    def item(self, index: int, *, epoch: int = 0) -> dict[str, Any]:
        """Return the inputs and targets of a sample in an epoch."""
        ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward on one rank."""

    tensors: Mapping[str, Tensor]
    """Arguments of the model's forward, on the device."""
    indices: tuple[int, ...]
    """Numbers of the samples; empty for a stand-in that counts nothing."""
    num_targets: int
    num_tokens: int
    """Real tokens, without padding."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to, the same on every rank."""

    loss: float
    """Mean over the targets of the global batch."""
    grad_norm: float
    """Global norm before clipping."""
    is_taken: bool = True
    """False where float16 gradients overflowed: nothing was changed, and the loss scale is smaller now."""


def build_micro_batches(
    dataset: Dataset, indices: Sequence[int], *, epoch: int, world: World, max_rows: int | None = None
) -> list[MicroBatch]:
    """Return this rank's micro-batches of a global batch, the same number of them on every rank.

    A sharded model gathers its parameters in every forward, with all ranks taking part. So a rank with fewer micro-batches than
    others, or none, gets stand-ins: the first sample of the batch, with no weight. Not collective: all ranks compute the same cut.

    Args:
        dataset: Where samples come from.
        indices: Samples of the global batch, at least one.
        epoch: Number of the pass over the data.
        world: The processes.
        max_rows: Most samples of one forward; None takes the whole share at once.
    """
    shares = split_among(indices, dataset.lengths, world.data_size)
    cuts = [micro_batches(share, dataset.lengths, max_rows) for share in shares]
    own = cuts[world.data_rank]
    num_rounds = max(len(cut) for cut in cuts)
    batches = [_micro_batch(dataset, piece, epoch, world.device) for piece in own]
    for _ in range(num_rounds - len(own)):
        stand_in = _micro_batch(dataset, [indices[0]], epoch, world.device)
        batches.append(MicroBatch(stand_in.tensors, (), 0, 0))
    return batches


def _micro_batch(dataset: Dataset, indices: Sequence[int], epoch: int, device: torch.device) -> MicroBatch:
    tensors = collate([dataset.item(index, epoch=epoch) for index in indices], dataset.pad_id)
    num_tokens = sum(dataset.lengths[index] for index in indices)
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    return MicroBatch(moved, tuple(indices), count_targets(tensors), num_tokens)


def take_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[MicroBatch],
    *,
    num_targets: int,
    clip_norm: float | None,
    world: World,
    step: int,
    loss_scale: LossScale | None = None,
) -> StepResult:
    """Accumulate the gradients of the global batch, clip them and take the optimizer step. Collective.

    Args:
        model: In training mode, its gradients empty.
        optimizer: Over its parameters, with the rate of this step.
        batches: This rank's micro-batches, as many as every other rank's.
        num_targets: Supervised targets of the global batch, over all ranks.
        clip_norm: Global norm above which gradients are scaled down; None never scales.
        world: The processes.
        step: Number of the step, for messages.
        loss_scale: Of a float16 run, changed in place; None for none.

    Raises:
        NonFiniteError: The loss or a gradient is NaN or infinite. No step was taken; all ranks raise it, and it names the samples
            and the parameters.
    """
    scale = 1.0 if loss_scale is None else loss_scale.scale
    clock = prepared(model).clock
    with clock.timed("compute"):
        losses = []
        for number, batch in enumerate(batches, start=1):
            accumulating(model, is_last=number == len(batches))
            losses.append(_backward(model, batch, num_targets, scale, world=world, doing=f"step {step}"))
        values = torch.stack(losses).tolist()
    with clock.timed("optimizer"):
        loss = world.sum_data([math.fsum(values)])[0]
        grad_norm = clip_grad_norm(model.parameters(), clip_norm, divisor=scale)
    if loss_scale is not None and math.isfinite(loss):
        if math.isfinite(grad_norm):
            loss_scale.step_was_taken()
        elif loss_scale.step_overflowed():
            optimizer.zero_grad(set_to_none=True)
            return StepResult(loss, grad_norm, is_taken=False)
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        suspects = [
            index for batch, value in zip(batches, values, strict=True) if not math.isfinite(value) for index in batch.indices
        ]
        if math.isfinite(loss):
            suspects = [index for batch in batches for index in batch.indices]
        raise _non_finite(model, world, step, (loss, grad_norm), suspects)
    if step == 1 and world.is_main and tiers_of(model) is None:
        _warn_of_unreached(model)
    with clock.timed("optimizer"):
        world.enter(f"the optimizer step {step}")
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    clock.steps += 1
    return StepResult(loss, grad_norm)


def _warn_of_unreached(model: nn.Module) -> None:
    """Say which trained parameters got no gradient on any rank: they would stay as they are, however long the run."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        log.warning("no gradient reaches %s%s: trained, but the loss does not depend on them", ", ".join(names[:SHOWN]), more)


def try_step(model: nn.Module, optimizer: Optimizer, batches: Sequence[MicroBatch], *, world: World, doing: str) -> None:
    """Compute the gradients of a global batch and throw them away: to see that its memory is there. Collective.

    Args:
        model: In training mode, its gradients empty.
        optimizer: Over its parameters.
        batches: This rank's micro-batches, as many as every other rank's.
        world: The processes.
        doing: What it is, for messages of lost ranks: "step 41, the largest to come".
    """
    num_targets = max(sum(batch.num_targets for batch in batches), 1)
    for number, batch in enumerate(batches, start=1):
        accumulating(model, is_last=number == len(batches))
        _backward(model, batch, num_targets, 1.0, world=world, doing=doing)
    clip_grad_norm(model.parameters(), None)
    optimizer.zero_grad(set_to_none=True)


def _backward(model: nn.Module, batch: MicroBatch, num_targets: int, scale: float, *, world: World, doing: str) -> Tensor:
    """Run a micro-batch and return its part of the step's loss, detached."""
    world.enter(f"the forward of {doing}")
    output = model(**batch.tensors)
    loss: Tensor = output.loss * (batch.num_targets / num_targets)
    if not loss.requires_grad:
        # no target of this micro-batch is supervised; a sharded model must still see its backward
        logits = output.logits if output.logits is not None else output.start_logits
        loss = loss + 0.0 * logits.float().clamp(-1, 1).sum()
    world.enter(f"the backward of {doing}")
    (loss if scale == 1.0 else loss * scale).backward()
    return loss.detach().float()


def _non_finite(model: nn.Module, world: World, step: int, values: tuple[float, float], samples: Sequence[int]) -> NonFiniteError:
    """Return the error that all ranks raise. Collective."""
    names = [name for name, _ in model.named_parameters()]
    weights = [name for name, parameter in model.named_parameters() if not _is_finite(parameter)]
    gradients = [
        name for name, parameter in model.named_parameters() if parameter.grad is not None and not _is_finite(parameter.grad)
    ]
    told = world.gather((list(samples), weights, gradients))
    all_samples = sorted({index for some, _, _ in told for index in some})
    all_weights = sorted({name for _, some, _ in told for name in some}, key=names.index)
    # everything before a bad gradient is bad as well, so the ones nearest to the loss come first
    all_gradients = sorted({name for _, _, some in told for name in some}, key=names.index, reverse=True)
    return mark_agreed(
        world,
        NonFiniteError(
            f"step {step}: loss {values[0]:g}, gradient norm {values[1]:g}: expected finite numbers; the step was not taken\n"
            f"  samples      {all_samples[:20]}{' ...' if len(all_samples) > 20 else ''} (numbers of the training items, from 0)\n"
            f"  weights      {_first(all_weights)}\n"
            f"  gradients    {_first(all_gradients)}\n"
            "  the last checkpoint is intact; look at these samples (modelzoo data show RUN --items NUMBERS), lower optimizer.lr, "
            "or set train.clip_norm"
        ),
    )


def _first(names: Sequence[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"not finite in {', '.join(names[:count])}{more}" if names else "all finite"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(local_values(tensor)).all())
