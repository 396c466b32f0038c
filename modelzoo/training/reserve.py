"""What a step takes beside the model's values: activations, scores and the program itself, so that the tiers leave it free.

The program is not estimated: everything that a run imports and starts only later (torch's compiler front, which the first step
imports, 29 MiB; the plot's figures, 27 MiB; the code of kernels, 18 MiB; threads) is brought in by a small rehearsal, and then its
memory is read. Activations are the plan's closed forms, for the largest micro-batch and the largest evaluation batch.
"""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from modelzoo.config import RunSettings
from modelzoo.config.parallel import ParallelConfig, recomputed
from modelzoo.models.model import Model
from modelzoo.plan.activations import unit_activations
from modelzoo.plan.head_activations import head_activations
from modelzoo.plan.memory import SMALL_BYTES
from modelzoo.plan.parts import ModelParts, read_parts
from modelzoo.plan.workload import Workload, evaluated_tokens, workload_of
from modelzoo.runtime import World, prepare
from modelzoo.runtime.memory import CONTEXT_BYTES, give_back_at_once, resident_bytes
from modelzoo.training.step import Dataset

__all__ = ["activation_bytes", "evaluation_bytes", "inputs_bytes", "rehearse", "reserved_bytes"]

LATER = ("torch._dynamo", "safetensors.torch")
"""Modules that a run imports after its budget is shared out."""


def reserved_bytes(settings: RunSettings, model: Model, dataset: Dataset, world: World, *, evaluated: Sequence[int] = ()) -> int:
    """Return the bytes that the tiers must leave free of the memory that a process computes in. Collective.

    They are what it takes already (of an accelerator: what its driver takes), and its largest micro-batch.

    Args:
        settings: Of the run.
        model: On meta.
        dataset: Whose lengths bound a micro-batch.
        world: Between whose processes a batch is shared.
        evaluated: Tokens of each sample that is evaluated.
    """
    tensor = settings.parallel.tensor
    work = _work(settings, model, dataset, world)
    parts = read_parts(model)
    needed = max(
        activation_bytes(parts, work, tensor=tensor),
        evaluation_bytes(parts, work, evaluated, settings.evaluation.batch_tokens, tensor=tensor),
    )
    if world.device.type != "cpu":  # what the program takes of the host is read when the host's budget is shared out
        rehearse(world, settings.parallel)
        return CONTEXT_BYTES + needed + SMALL_BYTES
    give_back_at_once()
    rehearse(world, settings.parallel)
    return resident_bytes() + needed + SMALL_BYTES


def inputs_bytes(settings: RunSettings, model: Model, dataset: Dataset, world: World) -> int:
    """Return the bytes on disk of blocks' inputs that wait there (`memory.activations: offload`), for the largest micro-batch.

    Args:
        settings: Of the run.
        model: On meta.
        dataset: Whose lengths bound a micro-batch.
        world: Between whose processes a batch is shared.
    """
    work = _work(settings, model, dataset, world)
    if not work.offloads_inputs:
        return 0
    parts = read_parts(model)
    work = work.behind(parts.prompt_tokens)
    count = sum(recomputed(work.recompute, len(parts.blocks)))
    return count * work.value_bytes * max(work.batch_tokens, work.target_tokens) * parts.hidden_size


def _work(settings: RunSettings, model: Model, dataset: Dataset, world: World) -> Workload:
    return workload_of(
        settings,
        data_ranks=world.world_size // settings.parallel.tensor,
        max_length=model.max_length,
        is_host=world.device.type == "cpu",
        lengths=dataset.lengths,
    )


def activation_bytes(model: ModelParts, work: Workload, *, tensor: int = 1) -> int:
    """Return the most bytes that activations, scores and their gradients take at any moment of a step.

    Args:
        model: Its units.
        work: Of a rank.
        tensor: Ranks that compute a sample together.
    """
    blocks = unit_activations(model, work, tensor=tensor)
    first, last = head_activations(model, work, tensor=tensor)
    kept = first.kept + sum(block.kept for block in blocks)
    moments = [kept + last.kept + last.again]
    for block in reversed(blocks):
        moments.append(kept + block.again + block.work)
        kept -= block.kept
    moments.append(first.kept + first.work)
    return max(moments)


def evaluation_bytes(model: ModelParts, work: Workload, lengths: Sequence[int], batch_tokens: int, *, tensor: int = 1) -> int:
    """Return the most bytes that the forward of an evaluation takes: a block's input, its sum, and its widest tensors.

    Args:
        model: Its units.
        work: Of training on a rank.
        lengths: Tokens of each sample; none is evaluated where it is empty.
        batch_tokens: Most of a batch.
        tensor: Ranks that compute a sample together.
    """
    chosen: list[int] = []
    most = evaluated_tokens(batch_tokens, model.vocab_size if model.is_language_model else None)
    for length in sorted(lengths, reverse=True):
        if sum(chosen) + length <= most or not chosen:
            chosen.append(length)
    if not chosen:
        return 0
    batch = replace(work, lengths=tuple(chosen), target_lengths=(), recompute="none")
    widest = max(block.work for block in unit_activations(model, batch, tensor=tensor))
    scores = batch.batch_tokens * model.vocab_size * 3 * 4 if model.is_language_model else 0
    return max(widest + 2 * batch.value_bytes * batch.batch_tokens * model.hidden_size, scores)


def rehearse(world: World, config: ParallelConfig) -> None:
    """Import and start what a run needs later, on a model of a few values; draws no number that the run would draw. Collective.

    Args:
        world: The processes.
        config: Of the run: on one process in float32 nothing is sharded, in low precision it is.
    """
    for name in LATER:
        importlib.import_module(name)
    _draw()
    with torch.random.fork_rng(devices=[]):
        model = prepare(_Rehearsal(), world, ParallelConfig(zero=3, precision=config.precision), for_tiers=True)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            model(torch.zeros(2, 8, dtype=torch.long, device=world.device)).backward()
            optimizer.step()
            optimizer.zero_grad()


def _draw() -> None:
    """Draw a picture as the plot of a run does: its fonts and its canvas are larger than its values."""
    if importlib.util.find_spec("matplotlib") is None:  # then there will be no plot
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes, _ = figure.subplots(2)
    axes.plot([0, 1], [0, 1], label="0123456789")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png", dpi=120)


class _Rehearsal(nn.Module):
    """The kernels of a transformer, small."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            heads = block(x).unflatten(-1, (2, 32)).transpose(1, 2)
            x = x + nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return nn.functional.cross_entropy(x.flatten(0, 1) @ self.table.weight.T, ids.flatten())
