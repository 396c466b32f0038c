"""Every family, laid out over ranks before its files are read: the plain load's values to the bit, and the same files again."""

import traceback
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from harness import Case, cases, made_here, main_task

import modelzoo
from modelzoo.config.parallel import ParallelConfig
from modelzoo.models.model import Model
from modelzoo.runtime import World, connect, full_tensor, layout
from modelzoo.verification import verification_batch

MAIN = [case for case in cases() if case.task == main_task(case.family)]
QUICK = [case for case in MAIN if case.name == "plain" or case.name.startswith("tie")]
FEW = [case for case in QUICK if case.family in ("bert", "gpt2", "llama", "t5", "cpm1", "mixtral")]
LAYOUTS = {2: [{"zero": 3}, {"tensor": 2}], 3: [{"zero": 3}], 4: [{"zero": 3, "tensor": 2}, {"zero": 2, "data_replicate": 2}]}


def folder_of(case: Case, root: Path) -> Path:
    return root / str(case)


def differences(case: Case, folder: Path, world: World, options: dict[str, int]) -> list[str]:
    plain = modelzoo.from_pretrained(folder, task=case.task)
    model = modelzoo.from_pretrained(folder, task=case.task, lay_out=layout(world, ParallelConfig(**options)))
    lines = []
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        found = model.get_parameter(name)
        if not torch.equal(full_tensor(found.detach()), parameter.detach()):
            lines.append(f"{name} has other values")
        if found is not dict(model.named_parameters(remove_duplicate=False))[name]:
            lines.append(f"{name} stands twice")
    names, found_names = (list(dict(each.named_parameters())) for each in (plain, model))
    if names != found_names:
        lines.append(f"ties differ: {set(names) ^ set(found_names)}")
    buffers = dict(model.named_buffers())
    lines += [f"{name} has other values" for name, buffer in plain.named_buffers() if not torch.equal(buffers[name], buffer)]
    lines += other_outputs(plain, model)
    out = folder.with_name(f"{folder.name}-out-{'-'.join(f'{name}{value}' for name, value in options.items())}")
    model.save_pretrained(out)
    world.barrier()
    for file in ("model.safetensors", "config.json"):
        if (out / file).read_bytes() != (folder / file).read_bytes():
            lines.append(f"{file} is another")
    world.tensor_size = 1
    return [f"{case} {options}: {line}" for line in lines]


def other_outputs(plain: Model, model: Model) -> list[str]:
    with torch.no_grad():
        batch = verification_batch(plain)
        expected, found = plain(**batch).logits, model(**batch).logits
    difference = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    return [] if difference <= 1e-5 else [f"logits are off by {difference:.1e}"]


def load(chosen: list[Case], root: Path, is_every_layout: bool) -> None:
    lines = []
    with connect(device="cpu") as world:
        for number, case in enumerate(chosen):
            layouts = LAYOUTS[world.world_size]
            for options in layouts if is_every_layout else [layouts[number % len(layouts)]]:
                try:
                    lines += differences(case, folder_of(case, root), world, options)
                except Exception:
                    lines.append(f"{case} {options}: {traceback.format_exc(limit=-3)}")
    assert not lines, "\n".join(lines)


def write(chosen: list[Case], root: Path) -> None:
    for case in chosen:
        made_here(case).save_pretrained(folder_of(case, root))


def test_every_family_is_loaded_and_saved_on_two_ranks(tmp_path: Path) -> None:
    write(QUICK, tmp_path)
    run_distributed(load, 2, QUICK, tmp_path, False)


@pytest.mark.parametrize("world_size", [3, 4])
def test_families_are_loaded_and_saved_on_more_ranks(tmp_path: Path, world_size: int) -> None:
    write(FEW, tmp_path)
    run_distributed(load, world_size, FEW, tmp_path, False)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_every_variant_is_loaded_and_saved_on_every_layout(tmp_path: Path, world_size: int) -> None:
    write(MAIN, tmp_path)
    run_distributed(load, world_size, MAIN, tmp_path, True, timeout_s=1800)


def fresh_heads(folder: Path) -> None:
    with connect(device="cpu") as world:
        expected = None
        for options in (None, {"zero": 3}, {"zero": 1}, {"tensor": 2}):
            torch.manual_seed(5)
            lay_out = None if options is None else layout(world, ParallelConfig(**options))
            model = modelzoo.from_pretrained(folder, task="classification", num_labels=7, lay_out=lay_out)
            assert model.load_report.new
            found = {name: full_tensor(parameter.detach()) for name, parameter in model.named_parameters()}
            expected = found if expected is None else expected
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(found[name], value), (name, options)
            world.tensor_size = 1


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_a_new_head_is_the_same_on_every_layout(tmp_path: Path, family: str) -> None:
    case = next(case for case in MAIN if case.family == family)
    made_here(case).save_pretrained(tmp_path / "model")
    run_distributed(fresh_heads, 2, tmp_path / "model")
