"""One process computes on the slots: no copy, values only while a block is at work, and the numbers of a plain module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from grid import build as build_model
from safetensors.torch import load_file
from tier_runs import Plan, laid_out, run, take
from torch import Tensor, nn

from modelzoo import from_pretrained
from modelzoo.adapters import add_adapter
from modelzoo.config import MemoryConfig, ParallelConfig
from modelzoo.config.adapter import AdapterConfig
from modelzoo.generation import generate
from modelzoo.runtime import World, connect, prepare
from modelzoo.runtime.tiers import Placement, TieredAdamW, attach, attach_tiers, engine, sizes_of
from modelzoo.runtime.tiers.in_place import nothing_like
from modelzoo.runtime.tiers.unit import KINDS
from modelzoo.sharded import full_tensor, is_away, local_values


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


def everything_on_disk(model: nn.Module) -> Placement:
    homes: Any = tuple(dict.fromkeys(KINDS, "disk") for _ in sizes_of(model))
    return Placement(homes, 0, 16 * sum(unit.shard for unit in sizes_of(model)), 0, 0)


def on_disk(model: nn.Module, world: World, folder: Path, **options: Any) -> Any:
    prepare(model, world, ParallelConfig(), for_tiers=True)
    memory = MemoryConfig(host="100%", disk={"path": str(folder)}, slots=2, **options)
    return attach_tiers(model, world, memory, placement=everything_on_disk(model))


def test_nothing_has_a_shape_no_memory_and_only_nan() -> None:
    nothing = nothing_like(torch.ones(3, 4))
    assert nothing.shape == (3, 4)
    assert nothing.untyped_storage().nbytes() == 4
    assert nothing.isnan().all()
    with pytest.raises(RuntimeError):
        nothing.copy_(torch.ones(3, 4))


def test_a_block_computes_on_its_slot_and_has_nothing_before_and_after(world: World, tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []
    with laid_out(Plan(layout="everything", when="deferred"), world, tmp_path) as (model, optimizer, tiers):
        block, others = tiers.units[1], [unit for unit in tiers.units[:-1] if unit is not tiers.units[1]]

        def look(*_: Any) -> None:
            slots = {slot.values.untyped_storage().data_ptr() for slot in tiers.ring.slots.slots}
            own = [place.parameter for place in block.places]
            assert all(parameter.untyped_storage().data_ptr() in slots for parameter in own)
            assert all(place.parameter.isnan().all() for unit in others for place in unit.places)
            seen.append((torch.is_grad_enabled(), len(slots)))

        part = next(module for module in block.module.modules() if not list(module.children()))
        part.register_forward_pre_hook(look)
        part.register_full_backward_hook(look)
        take(model, optimizer, Plan(), world, 0)
        assert len(seen) == 2
        assert all(count <= 2 for _, count in seen)
        assert all(parameter.isnan().all() and is_away(parameter) for parameter in model.parameters())
        assert all(local_values(parameter).isfinite().all() for parameter in model.parameters())


class Reused(nn.Module):
    """Three uses of one block between others, and outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        for number in (0, 1, 1, 2, 1):
            x = self.blocks[number](x, scale=1.5)["hidden"][0]
        return x.square().mean()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor, *, scale: float) -> dict[str, tuple[Tensor]]:
        return {"hidden": (x + scale * self.down(torch.tanh(self.up(self.norm(x)))),)}


@pytest.mark.parametrize("freezes", [False, True])
def test_a_block_that_is_used_again_and_frozen_parts_are_exact(freezes: bool, world: World, tmp_path: Path) -> None:
    found = []
    for uses_tiers in (False, True):
        torch.manual_seed(0)
        model = Reused()
        if freezes:
            model.blocks[1].up.requires_grad_(False)
            model.blocks[0].requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        tiers = on_disk(model, world, tmp_path, optimizer_update="deferred") if uses_tiers else None
        optimizer: Any = TieredAdamW(trained, tiers, lr=1e-2) if tiers else torch.optim.AdamW(trained, lr=1e-2, fused=True)
        losses = []
        for step in range(4):
            loss = model(torch.randn(5, 6, generator=torch.Generator().manual_seed(step)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        found.append((losses, [full_tensor(parameter).detach().clone() for parameter in model.parameters()]))
        if tiers:
            tiers.close()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(plain, ours) for plain, ours in zip(found[0][1], found[1][1], strict=True))


def test_an_error_in_a_forward_leaves_the_model_usable(world: World, tmp_path: Path) -> None:
    plan = Plan(layout="everything", steps=2)
    expected = run(plan.reference(), world, tmp_path)
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        handle = tiers.units[1].module.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take(model, optimizer, plan, world, 0)
        handle.remove()
        optimizer.zero_grad()
        assert [take(model, optimizer, plan, world, step)[0] for step in range(2)] == expected.losses


def test_an_adapter_on_frozen_blocks_is_exact(world: World, tmp_path: Path) -> None:
    found = []
    for uses_tiers in (False, True):
        torch.manual_seed(0)
        model = build_model("gpt2", True).eval()
        add_adapter(model, AdapterConfig(method="lora", r=2))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            torch.nn.init.normal_(parameter, std=0.1)
        tiers = on_disk(model, world, tmp_path) if uses_tiers else None
        optimizer: Any = TieredAdamW(trained, tiers, lr=1e-2) if tiers else torch.optim.AdamW(trained, lr=1e-2, fused=True)
        for step in range(3):
            ids = torch.randint(1, 7, (2, 6), generator=torch.Generator().manual_seed(step))
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append([full_tensor(parameter).detach().clone() for parameter in trained])
        if tiers:
            tiers.close()
    assert all(torch.equal(plain, ours) for plain, ours in zip(*found, strict=True))


def test_an_encoder_decoder_writes_the_same_from_disk(world: World, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model("t5", True).eval()
    ids = torch.randint(2, 7, (2, 5), generator=torch.Generator().manual_seed(0))
    plain = generate(model, ids, max_new_tokens=6)
    tiers = on_disk(model, world, tmp_path)
    assert generate(model, ids, max_new_tokens=6).new_ids == plain.new_ids
    assert generate(model, ids, max_new_tokens=6, prepack=True).new_ids == plain.new_ids
    tiers.close()


def test_a_checkpoint_is_loaded_to_disk_and_saved_from_it(world: World, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build_model("bert", True).save_pretrained(tmp_path / "plain")

    def lay_out(model: nn.Module) -> nn.Module:
        prepare(model, world, ParallelConfig(), for_tiers=True)
        memory = MemoryConfig(host="100%", disk={"path": str(tmp_path / "disk")})
        attach_tiers(model, world, memory, placement=everything_on_disk(model), is_filled=False)
        return model

    model = from_pretrained(tmp_path / "plain", task="masked_lm", lay_out=lay_out)
    assert all(is_away(parameter) for parameter in model.parameters())
    model.save_pretrained(tmp_path / "saved")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "saved"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("budget", "keeps"), [(None, True), (400, True), (110, False)])
def test_glibc_keeps_freed_memory_only_where_the_budget_has_room(
    budget: int | None, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in ("keep_freed", "give_back_at_once"):
        monkeypatch.setattr(attach, name, lambda name=name: called.append(name))
    homes: Any = (dict.fromkeys(KINDS, "memory"),)
    assert attach._hold_heap(Placement(homes, 80, 0, 0, 0), budget, 20) == (budget if keeps else None)
    assert called == ["keep_freed" if keeps else "give_back_at_once"]
    on_disk: Any = Placement(({**homes[0], "exp_avg": "disk"},), 80, 10, 0, 0)
    assert attach._hold_heap(on_disk, budget, 20) is None


def test_freed_memory_is_given_back_when_the_budget_is_near(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("give_back_at_once", "trim_heap"):
        monkeypatch.setattr(engine, name, lambda name=name: called.append(name))
    plan = Plan(layout="100%")
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        for limit, expected in ((2**60, 0), (1, 2), (None, 2)):
            if limit is not None:
                tiers.heap_limit = limit
            take(model, optimizer, plan, world, 0)
            assert len(called) == expected
