"""Checkpoints saved on one layout and resumed on another, many pairs in one set of processes."""

import itertools
import json
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from distributed import run_distributed
from grid import build, count, global_batch, micro_batches
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime import (
    Identity,
    World,
    connect,
    full_state,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    prepare,
    save_checkpoint,
)
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.step import take_step

RANKS = 4
STEPS = 3
TOLERANCE = 1e-6
IDENTITY = Identity("config", "data")


@dataclass(frozen=True)
class Layout:
    """A model and how it lies over some of the ranks."""

    model: str
    tied: bool
    ranks: int
    zero: int
    tensor: int = 1
    data_replicate: int = 1

    def __str__(self) -> str:
        ties = "tied" if self.tied else "untied"
        return f"{self.model}-{ties}-{self.ranks}-zero{self.zero}-tensor{self.tensor}-replicate{self.data_replicate}"

    @property
    def config(self) -> ParallelConfig:
        return ParallelConfig(zero=self.zero, tensor=self.tensor, data_replicate=self.data_replicate)


Pair = tuple[Layout, Layout]


def axes_of(ranks: int, zero: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = [{}]
    if ranks % 2 == 0:
        found.append({"tensor": 2})
    if ranks == 4 and zero:
        found.append({"data_replicate": 2})
    return found


def all_pairs() -> list[Pair]:
    """{1,2,3,4} -> {1,2,3,4} x ZeRO 0 to 3 x tied and untied, at the same level and at another one, and the other axes in turn."""
    pairs = []
    for before, after, zero, tied in itertools.product(range(1, 5), range(1, 5), range(4), (True, False)):
        source = Layout("gpt2", tied, before, zero)
        pairs.append((source, Layout("gpt2", tied, after, zero)))
        pairs.append((source, Layout("gpt2", tied, after, (zero + 1 + before) % 4)))
    for tied, (before, after), zero in itertools.product((True, False), itertools.product(range(1, 5), repeat=2), (0, 1, 3)):
        for first, second in itertools.product(axes_of(before, zero), axes_of(after, 3)):
            if first or second:
                pairs.append((Layout("bert", tied, before, zero, **first), Layout("bert", tied, after, 3, **second)))
    return pairs


def few_pairs() -> list[Pair]:
    """One pair for each two numbers of ranks, with the levels, ties and axes in turn."""
    levels, ties = itertools.cycle((3, 0, 2, 1, 3)), itertools.cycle((True, False, False))
    pairs = []
    for number, (before, after) in enumerate(itertools.product(range(1, 5), repeat=2)):
        first, second, tied = next(levels), next(levels), next(ties)
        sources, targets = axes_of(before, first), axes_of(after, second)
        source = Layout("gpt2", tied, before, first, **sources[number % len(sources)])
        pairs.append((source, Layout("gpt2", tied, after, second, **targets[number % len(targets)])))
    return pairs


def check_pairs(folder: Path, pairs: list[Pair], timeout_s: float) -> list[str]:
    """Save every source once, resume every pair, and return what differs; one set of processes for each number of ranks."""
    sources = list(dict.fromkeys(source for source, _ in pairs))
    for ranks in range(1, RANKS + 1):
        work = [(source, None) for source in sources if source.ranks == ranks]
        run_distributed(work_through, ranks, str(folder), work, timeout_s=timeout_s)
    for ranks in range(1, RANKS + 1):
        work = [pair for pair in pairs if pair[1].ranks == ranks]
        run_distributed(work_through, ranks, str(folder), work, timeout_s=timeout_s)
    return [problem for path in sorted(folder.glob("problems-*")) for problem in json.loads(path.read_text())]


def work_through(folder: str, work: list[tuple[Layout, Layout | None]]) -> None:
    """Save each source that has no target, resume the others; what goes wrong is written down."""
    problems = []
    with connect(120, device="cpu") as world:
        for source, target in work:
            world.tensor_size = 1
            place = Path(folder) / str(source)
            try:
                problem = save(place, source, world) if target is None else resume(place, target, world)
            except Exception:
                problem = traceback.format_exc(limit=-4)
            if problem:
                problems.append(f"rank {world.rank}: {source} -> {target}: {problem}")
        if problems:
            (Path(folder) / f"problems-{world.world_size}-{world.rank}.json").write_text(json.dumps(problems))


def whole(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    kinds = {"model": model_tensors(model), "optimizer": optimizer_tensors(model, optimizer)}
    return {
        f"{kind}/{name}": tensor.clone(memory_format=torch.contiguous_format)
        for kind, some in kinds.items()
        for name, tensor in full_state(some)
    }


def one_step(layout: Layout, model: nn.Module, optimizer: Optimizer, world: World, step: int) -> float:
    batch = global_batch(step)
    batches = micro_batches(batch, layout.model, world.data_rank, world.data_size, 1)
    targets = count(batch["labels"], layout.model)
    return take_step(model, optimizer, batches, num_targets=targets, clip_norm=0.5, world=world, step=step).loss


def save(folder: Path, layout: Layout, world: World) -> None:
    """Train a little and save; beside the checkpoint goes what it must come to, gathered, and the loss of the next step."""
    model = prepare(build(layout.model, layout.tied), world, layout.config)
    optimizer = build_optimizer(model, lr=1e-3, eps=1e-5)
    for step in range(STEPS):
        one_step(layout, model, optimizer, world, step)
    save_checkpoint(folder, STEPS, model=model, optimizer=optimizer, world=world, state={}, identity=IDENTITY)
    expected = whole(model, optimizer)
    loss = one_step(layout, model, optimizer, world, STEPS)
    if world.is_main:
        save_file(expected, folder / "expected.safetensors")
        (folder / "loss.json").write_text(json.dumps(loss))


def resume(folder: Path, layout: Layout, world: World) -> str | None:
    """Return what differs after a resume on this layout, None if all is exact."""
    model = prepare(build(layout.model, layout.tied, seed=9), world, layout.config)
    optimizer = build_optimizer(model, lr=1e-3, eps=1e-5)
    load_checkpoint(folder / f"step-{STEPS}", model=model, optimizer=optimizer, world=world)
    found, expected = whole(model, optimizer), load_file(folder / "expected.safetensors")
    loss, expected_loss = one_step(layout, model, optimizer, world, STEPS), json.loads((folder / "loss.json").read_text())
    if set(found) != set(expected):
        return f"other tensors: {sorted(set(found) ^ set(expected))}"
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    if different:
        return f"not bit for bit: {different}"
    return None if abs(loss - expected_loss) <= TOLERANCE else f"next loss {loss}, expected {expected_loss}"
