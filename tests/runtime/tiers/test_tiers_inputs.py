"""Inputs of blocks that are computed again wait on disk: nothing changes but the memory, and nothing is left behind."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from tier_runs import Plan, laid_out, loss_of, run
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from modelzoo.config.memory import MemoryConfig
from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import ConfigError, SaveError
from modelzoo.runtime import World, connect, prepare
from modelzoo.runtime.recompute import keep_inputs, recompute
from modelzoo.runtime.tiers import attach_tiers, inputs
from modelzoo.runtime.tiers.inputs import INPUT_BUFFERS, Inputs
from modelzoo.runtime.tiers.traffic import DiskTraffic

OFFLOAD = Plan(layout="everything", when="deferred", activations="offload", parallel={"recompute": "blocks"})


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


@pytest.fixture(autouse=True)
def _tiny_inputs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SMALLEST_BYTES", 1)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "cpm1"])
def test_offloaded_inputs_train_as_kept_ones_do(family: str, world: World, tmp_path: Path) -> None:
    reference = run(replace(OFFLOAD, model=family).reference(), world, tmp_path)
    for layout, when in (("everything", "deferred"), ("100%", "step")):
        plan = replace(OFFLOAD, model=family, layout=layout, when=when)
        assert not run(plan, world, tmp_path).difference(reference), plan


@pytest.mark.parametrize(
    "change",
    [
        {"accumulation": 4},
        {"changes_shapes": True, "steps": 5},
        {"looks_in_between": True, "steps": 4},
        {"parallel": {"recompute": "every 2"}},
        {"parallel": {"recompute": "selective"}},
        {"parallel": {"recompute": "first 1", "precision": "bfloat16"}, "steps": 2},
    ],
)
def test_variants_are_exact(change: dict, world: World, tmp_path: Path) -> None:
    plan = replace(OFFLOAD, **change)
    assert not run(plan, world, tmp_path).difference(run(plan.reference(), world, tmp_path))


def on_ranks(folder: str) -> None:
    inputs.SMALLEST_BYTES = 1
    with connect(device="cpu") as world:
        plan = replace(OFFLOAD, model="bert", parallel={"zero": 3, "recompute": "blocks"}, steps=2)
        assert not run(plan, world, Path(folder)).difference(run(plan.reference(), world, Path(folder)))


def test_two_ranks_are_exact(tmp_path: Path) -> None:
    run_distributed(on_ranks, 2, str(tmp_path), timeout_s=240)


class Stack(nn.Module):
    """Blocks of little memory but for their inputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def peaks(tmp_path: Path, count: int) -> tuple[int, int, Inputs, DiskTraffic]:
    """Return the most bytes that a forward and its backward allocate, with inputs kept and offloaded, and compare gradients."""
    found, grads = [], []
    traffic = DiskTraffic()
    store = Inputs(lambda name: tmp_path / name, traffic)
    for keeper in (None, store.hooks):
        torch.manual_seed(0)
        model = Stack(count)
        recompute(list(model.blocks), "blocks")
        keep_inputs(list(model.blocks), keeper)
        x = torch.randn(4096, 8, requires_grad=True)
        for turn in range(2):
            model.zero_grad()
            live = Live()
            with live:
                model(x).sum().backward()
            assert turn or live.most > 0
        found.append(live.most)
        grads.append([parameter.grad for parameter in model.parameters()])
        del model
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    gc.collect()
    return found[0], found[1], store, traffic


class Live(TorchDispatchMode):
    """Counts bytes of the storages that operations made and that are alive; buffers are not made by operations."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict = {}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's own signature
        made = op(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self._note(each.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def test_the_peak_falls_by_what_the_blocks_keep(tmp_path: Path) -> None:
    kept, offloaded, store, traffic = peaks(tmp_path, 24)
    size = 4096 * 8 * 4
    assert kept > 24 * size
    assert offloaded < 10 * size  # what a block's backward takes, however many blocks there are
    assert store.size_bytes == INPUT_BUFFERS * size
    # the first step writes all; later ones leave the last two in their buffers, and read each input once
    assert traffic.written_bytes["inputs"] == (24 + 24 - 2) * size
    assert traffic.read_bytes["inputs"] <= 2 * (24 - 2) * size
    store.close()
    deeper_kept, deeper, store, _ = peaks(tmp_path, 36)
    assert deeper_kept > kept + 11 * size
    assert deeper < offloaded + size
    store.close()


def test_nothing_is_left_after_a_backward_or_a_forward_without_one(tmp_path: Path) -> None:
    store = Inputs(lambda name: tmp_path / name, DiskTraffic())
    model = Stack(6)
    recompute(list(model.blocks), "blocks")
    keep_inputs(list(model.blocks), store.hooks)
    x = torch.randn(512, 8)
    for _ in range(3):
        model(x).sum().backward()
        gc.collect()
        assert store.on_disk_bytes == 0
        loss = model(x).sum()
        assert store.on_disk_bytes == 6 * x.nbytes
        del loss
        gc.collect()
        assert store.on_disk_bytes == 0
    assert len(list(tmp_path.iterdir())) == 6
    store.close()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_is_raised_with_its_path_at_every_call_after(tmp_path: Path) -> None:
    store = Inputs(lambda name: tmp_path / name, DiskTraffic())
    model = Stack(6)
    recompute(list(model.blocks), "blocks")
    keep_inputs(list(model.blocks), store.hooks)
    x = torch.randn(512, 8)
    model(x).sum().backward()
    for path in tmp_path.iterdir():
        path.unlink()
    found = rf"{tmp_path}/inputs-\d: disk tier: write of inputs of the input of block \d: the file was deleted under way"
    for _ in range(2):
        with pytest.raises(SaveError, match=found):
            model(x).sum().backward()
    store.close()


def test_offloading_is_refused_where_it_would_do_nothing(world: World, tmp_path: Path) -> None:
    def attach(memory: dict, **parallel: object) -> None:
        model = prepare(Stack(2), world, ParallelConfig(**parallel), for_tiers=True)
        attach_tiers(model, world, MemoryConfig(host="100%", activations="offload", **memory))

    with pytest.raises(ConfigError, match=r"memory.activations=offload .* parallel.recompute=none computes none again; use"):
        attach({"disk": {"path": str(tmp_path)}})
    with pytest.raises(ConfigError, match=r"memory.activations=offload sends activations to the disk; give memory.disk.path"):
        attach({}, recompute="blocks")


def test_room_for_inputs_is_looked_for(world: World, tmp_path: Path) -> None:
    model = prepare(Stack(2), world, ParallelConfig(recompute="blocks"), for_tiers=True)
    memory = MemoryConfig(host="100%", activations="offload", disk={"path": str(tmp_path)})
    with pytest.raises(SaveError, match=r"needs 1048576.0 GiB, found"):
        attach_tiers(model, world, memory, inputs_bytes=2**50)


def test_a_loss_of_an_evaluation_is_not_kept(world: World, tmp_path: Path) -> None:
    with laid_out(OFFLOAD, world, tmp_path) as (model, _, tiers), torch.no_grad():
        loss_of(model, OFFLOAD, torch.ones(2, 3, dtype=torch.long))
        assert tiers.inputs_on_disk == 0
        assert tiers.traffic.written_bytes["inputs"] == 0
