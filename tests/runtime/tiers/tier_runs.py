"""Steps of tiny models on any layout of the tiers, and what they came to, to be compared bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from grid import VOCABULARY
from grid import build as build_model
from torch import Tensor, nn

from modelzoo.config.memory import MemoryConfig
from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime import World, accumulating, clip_grad_norm, prepare, reshard
from modelzoo.runtime.prepare import prepared
from modelzoo.runtime.tiers import (
    Placement,
    Sizes,
    TieredAdamW,
    Tiers,
    attach_tiers,
    device_placement,
    place_units,
    placement,
    sizes_of,
)
from modelzoo.runtime.tiers.device_placement import place_below_device
from modelzoo.runtime.tiers.link import Link
from modelzoo.runtime.tiers.unit import KINDS
from modelzoo.runtime.tiers.worker import WORKERS
from modelzoo.sharded import full_tensor

LAYOUTS = ("moments", "gradients", "everything", "100%", "60%", "40%", "25%", "0%")
HOMES_BELOW: dict[str, dict[str, str]] = {
    "host": dict.fromkeys(KINDS, "host"),
    "disk": dict.fromkeys(KINDS, "disk"),
    "moments in host": {"exp_avg": "host", "exp_avg_sq": "host"},
    "moments on disk": {"exp_avg": "disk", "exp_avg_sq": "disk"},
    "gradients in host": {"gradients": "host"},
    "parameters in host, moments on disk": {"parameters": "host", "gradients": "host", "exp_avg": "disk", "exp_avg_sq": "disk"},
    "parameters on disk, moments in host": {"parameters": "disk", "gradients": "disk", "exp_avg": "host", "exp_avg_sq": "host"},
}
"""Below a device, by name."""
LR = 1e-3


class Odd(nn.Module):
    """Parameters of 1, 7 and 4,097 values in each of two blocks, and one of 5 in no block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OddBlock() for _ in range(2))
        self.shift = nn.Parameter(torch.randn(5))

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, ids: Tensor) -> Tensor:
        x = ids.float()
        for block in self.blocks:
            x = block(x)
        return (x.mean(-1) * self.shift.sum()).square().mean()


class OddBlock(nn.Module):
    """Sums of products with parameters of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.seven, self.many = (nn.Parameter(torch.randn(size)) for size in (1, 7, 4097))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one + torch.tanh(x.sum(-1, keepdim=True) * self.seven.sum()) * self.many.sin().mean()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train."""

    model: str = "gpt2"
    tied: bool = True
    layout: str = "none"
    """"none", the kinds that are on disk, or the share of the way from the smallest budget to everything."""
    when: str = "step"
    accumulation: int = 1
    clip: float | None = 0.1
    steps: int = 3
    frozen: bool = False
    looks_in_between: bool = False
    changes_shapes: bool = False
    slots: int = 2
    how: str = "plan"
    activations: str = "keep"
    sharded: bool = False
    """Whether one process shards as many do, instead of computing in place."""
    below_device: bool = False
    """Whether the model computes in a memory apart from the host's, as on an accelerator."""
    parallel: dict[str, Any] = field(default_factory=dict)

    def reference(self) -> "Plan":
        """The same steps without tiers."""
        return Plan(
            **{
                **vars(self),
                "layout": "none",
                "when": "step",
                "looks_in_between": False,
                "activations": "keep",
                "below_device": False,
            }
        )


@dataclass
class Came:
    """What the steps came to."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]
    moments: dict[str, Tensor]

    def difference(self, other: "Came") -> str:
        """Return what is not the same to the last bit."""
        problems = [name for name in ("losses", "norms") if getattr(self, name) != getattr(other, name)]
        for kind in ("parameters", "moments"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            assert ours.keys() == theirs.keys()
            problems += [f"{kind} {name}" for name in ours if not torch.equal(ours[name], theirs[name])]
        return ", ".join(problems)


def build(plan: Plan) -> nn.Module:
    torch.manual_seed(0)
    model = Odd() if plan.model == "odd" else build_model(plan.model, plan.tied)
    if plan.frozen:
        blocks = {id(parameter) for parameter in model.shard_units()[0].parameters()}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(id(parameter) not in blocks and "embedding" not in name)
    return model


def placement_of(model: nn.Module, plan: Plan) -> Placement:
    """Return a placement whose disk holds these kinds, or that of a budget between the smallest and everything."""
    # which are larger than these models
    with patch.object(placement, "SCRATCH_BYTES", 0), patch.object(device_placement, "HOST_SCRATCH_BYTES", 0):
        mesh = prepared(model).mesh
        options = {"slots": plan.slots, "how": plan.how, "when": plan.when, "ranks": None if mesh is None else mesh.size()}
        return (_below_device if plan.below_device else _placement_of)(sizes_of(model), plan, options)


def _placement_of(sizes: list[Sizes], plan: Plan, options: dict[str, Any]) -> Placement:
    options["has_disk"] = True
    largest = place_units(sizes, budget_bytes=None, **options)
    if plan.layout.endswith("%"):
        share = float(plan.layout[:-1]) / 100
        budget = int(largest.smallest_bytes + share * (largest.memory_bytes - largest.smallest_bytes))
        found = place_units(sizes, budget_bytes=budget, **options)
        assert found.memory_bytes <= budget
        assert found.disk_bytes or plan.layout == "100%"
        return found
    chosen = {"moments": ("exp_avg", "exp_avg_sq"), "gradients": ("gradients",), "everything": KINDS}[plan.layout]
    kinds = [kind for kind in chosen if kind != "gradients" or plan.when != "in_backward"]
    homes = tuple({kind: "disk" if kind in kinds else "memory" for kind in KINDS} for _ in sizes)
    return Placement(homes, largest.memory_bytes, 4 * len(kinds) * sum(unit.shard for unit in sizes), 0, 0)


def _below_device(sizes: list[Sizes], plan: Plan, options: dict[str, Any]) -> Placement:
    """The same with a device of its own: "60% 40%" is of the device and of what is below it in the host's memory."""
    largest = place_below_device(sizes, device_bytes=None, host_bytes=None, has_disk=False, **options)
    if "%" in plan.layout:
        of_device, of_host = (float(share[:-1]) / 100 for share in plan.layout.split())
        device = int(largest.smallest_bytes + of_device * (largest.memory_bytes - largest.smallest_bytes))
        below = place_below_device(sizes, device_bytes=device, host_bytes=None, has_disk=False, **options)
        buffers = 2 * WORKERS * 4 * max(unit.shard for unit in sizes)
        host = int(buffers + of_host * (below.host_bytes - buffers)) if of_host < 1 else below.host_bytes
        found = place_below_device(sizes, device_bytes=device, host_bytes=host, has_disk=True, **options)
        assert found.memory_bytes <= device
        assert found.host_bytes <= host
        return found
    homes: Any = tuple({kind: HOMES_BELOW[plan.layout].get(kind, "memory") for kind in KINDS} for _ in sizes)
    if plan.when == "in_backward":
        homes = tuple({**each, "gradients": "memory"} for each in homes)
    disk = 4 * sum(unit.shard * sum(home == "disk" for home in each.values()) for unit, each in zip(sizes, homes, strict=True))
    return Placement(homes, largest.memory_bytes, disk, 0, 0)


def memory_config(plan: Plan, folder: Path) -> MemoryConfig:
    return MemoryConfig(
        host="100%",
        disk={"path": str(folder)},
        placement=plan.how,
        optimizer_update=plan.when,
        slots=plan.slots,
        activations=plan.activations,
    )


@contextmanager
def laid_out(plan: Plan, world: World, folder: Path) -> Iterator[tuple[nn.Module, Any, Tiers | None]]:
    """A model, its optimizer and its tiers."""
    raw = build(plan)
    with patch("modelzoo.runtime.prepare.needs_mesh", lambda *_, **__: True) if plan.sharded else nullcontext():
        model = prepare(raw, world, ParallelConfig(**plan.parallel), for_tiers=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": trained[::2], "weight_decay": 0.1}, {"params": trained[1::2], "weight_decay": 0.0}]
    if plan.layout == "none":
        yield model, torch.optim.AdamW(groups, lr=LR, fused=True), None
        return
    link = Link(world.device, is_apart=plan.below_device)
    tiers = attach_tiers(model, world, memory_config(plan, folder), placement=placement_of(model, plan), link=link)
    try:
        yield model, TieredAdamW(groups, tiers, lr=LR), tiers
    finally:
        tiers.close()


def batch(plan: Plan, step: int, world: World) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    length = (5, 3, 8, 6)[step % 4] if plan.changes_shapes else 5
    rows = (8, 12, 8, 16)[step % 4] if plan.changes_shapes else 8
    return torch.randint(1, VOCABULARY, (rows, length), generator=generator)[world.data_rank :: world.data_size]


def loss_of(model: nn.Module, plan: Plan, ids: Tensor) -> Tensor:
    return model(ids) if plan.model == "odd" else model(ids, labels=ids).loss


def take(model: nn.Module, optimizer: Any, plan: Plan, world: World, step: int) -> tuple[float, float]:
    """Take one step and return its loss and its gradient norm."""
    ids = batch(plan, step, world)
    size = len(ids) // plan.accumulation
    total = 0.0
    for number in range(plan.accumulation):
        accumulating(model, is_last=number == plan.accumulation - 1)
        loss = loss_of(model, plan, ids[number * size : (number + 1) * size]) / plan.accumulation / world.data_size
        loss.backward()
        total += float(loss.detach())
    norm = clip_grad_norm(model.parameters(), plan.clip)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def look(model: nn.Module, plan: Plan, world: World) -> None:
    """Evaluate and, where the family can, generate."""
    model.eval()
    with torch.no_grad():
        loss_of(model, plan, batch(plan, 77, world))
        ids = batch(plan, 78, world)
        for _ in range(2 if plan.model in ("gpt2", "cpm1") else 0):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    reshard(model)
    model.train()


def run(plan: Plan, world: World, folder: Path) -> Came:
    with laid_out(plan, world, folder) as (model, optimizer, _):
        losses, norms = [], []
        for step in range(plan.steps):
            loss, norm = take(model, optimizer, plan, world, step)
            losses.append(loss)
            norms.append(norm)
            if plan.looks_in_between:
                look(model, plan, world)
        return came(model, optimizer, losses, norms)


def came(model: nn.Module, optimizer: Any, losses: list[float], norms: list[float]) -> Came:
    parameters = {name: full_tensor(parameter).detach().clone() for name, parameter in model.named_parameters()}
    moments = {
        f"{kind} {name}": full_tensor(value).clone()
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if kind != "step"
    }
    return Came(losses, norms, parameters, moments)
