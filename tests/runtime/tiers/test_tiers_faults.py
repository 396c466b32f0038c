"""What goes wrong with budgets and disks is an error that names path and sizes, at the next call at the latest; nothing hangs."""

import errno
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tier_runs import Plan, build, laid_out, loss_of, take

from modelzoo.config.memory import MemoryConfig, parse_size
from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import ConfigError, SaveError
from modelzoo.runtime import World, clip_grad_norm, connect, prepare
from modelzoo.runtime.memory import total_bytes
from modelzoo.runtime.tiers import attach_tiers, place_units, sizes_of
from modelzoo.runtime.tiers.direct_file import Buffer, DirectFile
from modelzoo.runtime.tiers.folder import TierFolder, sweep_ranks

PLAN = Plan(layout="everything", when="deferred")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with connect(device="cpu") as world:
        yield world


def prepared(world: World) -> torch.nn.Module:
    return prepare(build(PLAN), world, ParallelConfig(), for_tiers=True)


def take_many(model: torch.nn.Module, optimizer: Any, world: World) -> None:
    for step in range(1, 4):
        take(model, optimizer, PLAN, world, step)


@pytest.mark.parametrize("text", ["-1GiB", "-5", "0", "0%", "101%", "many", "1 XiB", "-20%"])
def test_a_budget_that_is_no_size_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        MemoryConfig(host=text)
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_size(text, 2**40)


def test_a_budget_above_the_machine_is_refused_with_what_it_has(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"memory.host=900TiB: expected at most what the machine has, found {total_bytes()}"):
        attach_tiers(prepared(world), world, MemoryConfig(host="900TiB", disk={"path": str(tmp_path)}))


def test_a_budget_that_is_too_small_is_refused_with_the_smallest_that_is_not(world: World, tmp_path: Path) -> None:
    model = prepared(world)
    memory = MemoryConfig(host="1000", disk={"path": str(tmp_path)})
    with pytest.raises(ConfigError, match="1000 B is too small: expected at least") as refused:
        attach_tiers(model, world, memory, reserved_bytes=300)
    assert refused.value.exit_code == 2
    smallest = int(re.search(r"\((\d+) bytes\)", str(refused.value))[1])
    with pytest.raises(ConfigError, match=rf"{smallest} bytes"):
        attach_tiers(model, world, memory.model_copy(update={"host": str(smallest - 1)}), reserved_bytes=300)
    tiers = attach_tiers(model, world, memory.model_copy(update={"host": str(smallest)}), reserved_bytes=300)
    assert tiers.placement.memory_bytes == smallest - 300
    tiers.close()


def test_without_a_disk_the_advice_is_to_give_one(world: World) -> None:
    sizes = sizes_of(prepared(world))
    with pytest.raises(ConfigError, match=r"is too small: expected at least .*; or give memory.disk.path"):
        place_units(sizes, budget_bytes=10, has_disk=False, slots=2, how="plan", when="step")


def test_a_model_that_was_not_prepared_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"GPT2: call modelzoo\.runtime\.prepare with for_tiers=True first"):
        attach_tiers(build(PLAN), world, MemoryConfig(host="1GiB"))


def test_a_folder_that_is_missing_is_made_and_one_that_is_a_file_is_refused(tmp_path: Path) -> None:
    TierFolder(tmp_path / "new" / "one", 0, 10, None).close()
    assert (tmp_path / "new" / "one" / "rank-0").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=rf"{tmp_path}/file/rank-0: disk tier: Not a directory; give another memory.disk.path"):
        TierFolder(tmp_path / "file", 0, 10, None)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SaveError, match=rf"{tmp_path}/rank-0: disk tier: Read-only file system") as refused:
        TierFolder(tmp_path, 0, 10, None)
    assert refused.value.exit_code == 3


def test_a_folder_of_another_run_is_refused_with_its_process(tmp_path: Path) -> None:
    first = TierFolder(tmp_path, 0, 10, None)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/rank-0: disk tier: process {os.getpid()} uses this folder") as refused:
        TierFolder(tmp_path, 0, 10, None)
    assert refused.value.exit_code == 2
    TierFolder(tmp_path, 1, 10, None).close()
    first.close()
    TierFolder(tmp_path, 0, 10, None).close()


def test_what_a_killed_run_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "unit-3.tier").write_bytes(bytes(100))
    (tmp_path / "rank-0" / "notes.txt").write_text("mine")
    TierFolder(tmp_path, 0, 10, None).close()
    assert sorted(path.name for path in (tmp_path / "rank-0").iterdir()) == ["lock", "notes.txt"]


def test_ranks_that_a_smaller_run_does_not_have_are_swept_unless_they_live(tmp_path: Path) -> None:
    for rank in (1, 2, 3):
        (tmp_path / f"rank-{rank}").mkdir()
        (tmp_path / f"rank-{rank}" / "unit-0.tier").write_bytes(bytes(10))
    living = TierFolder(tmp_path, 3, 10, None)
    living.file("unit-0").write_bytes(bytes(10))
    sweep_ranks(tmp_path, 2)
    assert sorted(path.parent.name for path in tmp_path.rglob("*.tier")) == ["rank-1", "rank-3"]
    living.close()


def test_a_disk_budget_that_is_too_small_and_a_disk_without_room_are_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"memory.disk.budget=1.0 MiB is too small for this model: expected at least 3.0 MiB \(3145728 b"
    ):
        TierFolder(tmp_path, 0, 3 * 2**20, 2**20)
    with pytest.raises(SaveError, match=rf"{tmp_path}/rank-0: disk tier: needs 1048576.0 GiB, found .* GiB free"):
        TierFolder(tmp_path, 0, 2**50, None)


def test_a_disk_that_is_full_is_refused_with_file_and_size_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(SaveError, match=rf"{tmp_path}/unit-0.tier: disk tier: block.0 needs 1048576 bytes: File too large"):
            DirectFile(tmp_path / "unit-0.tier", 2**20, "block.0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_stops_the_start_and_leaves_nothing(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fill(file: int, offset: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fill)
    with (
        pytest.raises(SaveError, match=r"unit-1.tier: disk tier: .* needs \d+ bytes: No space left on device"),
        laid_out(PLAN, world, tmp_path),
    ):
        pass
    assert [path.name for path in (tmp_path / "rank-0").iterdir()] == ["lock"]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_is_cut_under_way_is_an_error_at_every_call_after(size: int, world: World, tmp_path: Path) -> None:
    with laid_out(PLAN, world, tmp_path) as (model, optimizer, tiers):
        take(model, optimizer, PLAN, world, 0)
        tiers.flush()
        os.truncate(tmp_path / "rank-0" / "unit-0.tier", size)
        found = rf"{tmp_path}/rank-0/unit-0.tier: disk tier: .* of .*: expected a file of \d+ bytes, found {size}; it was cut"
        with pytest.raises(SaveError, match=found) as refused:
            take_many(model, optimizer, world)
        assert refused.value.exit_code == 3
        for again in (tiers.flush, lambda: loss_of(model, PLAN, torch.ones(2, 3, dtype=torch.long)), optimizer.step):
            with pytest.raises(SaveError, match=found):
                again()


def test_writing_never_fills_a_file_that_was_cut_with_zeros(tmp_path: Path) -> None:
    file = DirectFile(tmp_path / "unit", 2**16, "block.0")
    os.truncate(tmp_path / "unit", 0)
    buffer = Buffer(1024)
    with pytest.raises(SaveError, match=r"write of gradients of block.0: expected a file of 65536 bytes, found 0"):
        file.write(2**15, buffer.view[:4096], "gradients")
    file.close()


@pytest.mark.parametrize("layout", ["everything", "moments"])
def test_a_file_that_is_deleted_under_way_is_an_error_with_its_path(layout: str, world: World, tmp_path: Path) -> None:
    with laid_out(replace(PLAN, layout=layout), world, tmp_path) as (model, optimizer, tiers):
        take(model, optimizer, PLAN, world, 0)
        tiers.flush()
        for path in (tmp_path / "rank-0").glob("*.tier"):
            path.unlink()
        found = rf"{tmp_path}/rank-0/unit-\d.tier: disk tier: .* the file was deleted under way; .* give another memory.disk.path"
        with pytest.raises(SaveError, match=found) as refused:
            take_many(model, optimizer, world)
        assert refused.value.exit_code == 3
        with pytest.raises(SaveError, match=found):
            tiers.flush()


def test_a_disk_that_fails_in_a_thread_is_raised_at_the_next_call(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(layout="moments", when="step")
    with laid_out(plan, world, tmp_path) as (model, optimizer, tiers):
        take(model, optimizer, plan, world, 0)

        def fail(*args: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "pwritev", fail)
        with pytest.raises(SaveError, match=r"unit-\d.tier: disk tier: write of \w+ of .*: \d+ bytes at \d+: Input/output error"):
            take(model, optimizer, plan, world, 1)
        monkeypatch.undo()
        with pytest.raises(SaveError, match="Input/output error"):
            tiers.flush()


def test_a_thread_that_crashes_is_raised_and_hangs_nothing(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("a fault of our own")

    with laid_out(PLAN, world, tmp_path) as (model, optimizer, _):
        monkeypatch.setattr("modelzoo.runtime.tiers.ring.update_unit", crash)
        with pytest.raises(ZeroDivisionError, match="a fault of our own"):
            take_many(model, optimizer, world)


def test_an_update_in_the_backward_refuses_clipping_and_a_second_backward(world: World, tmp_path: Path) -> None:
    plan = Plan(layout="everything", when="in_backward", clip=None)
    with laid_out(plan, world, tmp_path) as (model, _, _):
        ids = torch.ones(2, 3, dtype=torch.long)
        loss_of(model, plan, ids).backward()
        with pytest.raises(ConfigError, match=r"memory.optimizer_update=in_backward has used the gradients .* leave clipping out"):
            clip_grad_norm(model.parameters(), 0.1)
        with pytest.raises(
            ConfigError, match=r"a second backward before the optimizer's step: memory.optimizer_update=in_backward"
        ):
            loss_of(model, plan, ids).backward()


def test_an_optimizer_that_knows_nothing_of_the_tiers_is_missed(world: World, tmp_path: Path) -> None:
    model = prepared(world)
    tiers = attach_tiers(model, world, MemoryConfig(host="100%", disk={"path": str(tmp_path)}))
    try:
        loss_of(model, PLAN, torch.ones(2, 3, dtype=torch.long)).backward()
        with pytest.raises(ConfigError, match=r"build it with modelzoo.runtime.tiers.TieredAdamW"):
            tiers.publish()
    finally:
        tiers.close()
