import os
import time

import pytest
import torch
import torch.distributed as dist
from distributed import run_distributed, run_ranks

from modelzoo.errors import ConfigError, DataError, RankError
from modelzoo.runtime import agree, connect, failing_together, raise_together


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with connect(device="cpu") as world:
        assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
        assert world.sum([1.5, 2]) == [1.5, 2.0]
        assert world.gather("x") == ["x"]
        assert world.broadcast({"a": 1}) == {"a": 1}
        world.barrier()
        assert not dist.is_initialized()


def test_half_an_environment_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="RANK=1 and WORLD_SIZE=None"):
        connect()


def test_rank_outside_the_world_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK=3 is not below WORLD_SIZE=2"):
        connect()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an accelerator")
def test_missing_device_is_refused():
    with pytest.raises(ConfigError, match=r"device=cuda: torch .* finds no CUDA device here"):
        connect(device="cuda")


def test_error_on_one_process_is_raised_as_it_is():
    error = DataError("row 3")
    with connect(device="cpu") as world, pytest.raises(DataError, match=r"^row 3$") as raised:
        raise_together(world, error)
    assert raised.value is error


class OneKindOfDataError(DataError):
    """A part's own class below one that every rank knows."""


def ranks_talk() -> None:
    with connect(device="cpu") as world:
        assert world.sum([1.0, world.rank]) == [2.0, 1.0]
        assert world.gather(f"rank {world.rank}") == ["rank 0", "rank 1"]
        assert world.broadcast(world.rank) == 0
        raise_together(world, None)
        agree(world, {"config": "same"})
        with pytest.raises(DataError, match=r"^rank 1: row 3 has no label$"):
            raise_together(world, DataError("row 3 has no label") if world.rank == 1 else None)
        with pytest.raises(DataError, match=r"^rank 0: row 7 \(also on rank 1\)$"):
            raise_together(world, OneKindOfDataError("row 7"))
        with pytest.raises(RankError, match=r"^rank 0: KeyError: 'x' \(also on rank 1\)$"):
            raise_together(world, KeyError("x"))
        with pytest.raises(RankError, match="config: rank 0 has lr 0, rank 1 has lr 1"):
            agree(world, {"config": f"lr {world.rank}"})
    assert not dist.is_initialized()


def test_ranks_talk_and_fail_together():
    run_distributed(ranks_talk, 2)


def one_rank_fails_alone() -> None:
    with connect(timeout_s=30, device="cpu") as world, failing_together(world, "step 4"):
        if world.rank == 1:
            raise ValueError("bad batch")
        started = time.monotonic()
        try:
            world.barrier()
        finally:
            assert time.monotonic() - started < 10


def test_lone_error_ends_all_ranks_and_names_the_first():
    failures = run_ranks(one_rank_fails_alone, 2)
    assert sorted(failures) == [0, 1]
    assert "ValueError: bad batch" in failures[1]
    assert "RankError: rank 1: ValueError: bad batch (in step 4)" in failures[1]
    assert "RankError: rank 1: ValueError: bad batch (in step 4); rank 0 stopped with it in step 4" in failures[0]


def one_rank_dies() -> None:
    with connect(timeout_s=30, device="cpu") as world, failing_together(world, "step 4"):
        world.barrier()
        if world.rank == 1:
            os._exit(9)
        world.barrier()


def test_dead_rank_is_noticed_by_the_others():
    failures = run_ranks(one_rank_dies, 2)
    assert "exit code 9" in failures[1]
    assert "RankError: rank 1 was lost in step 4: its process is gone; rank 0 waited for it in adding up numbers" in failures[0]


def one_rank_is_stuck() -> None:
    with connect(timeout_s=1, device="cpu") as world:
        if world.rank == 1:
            time.sleep(4)
            return
        started = time.monotonic()
        with pytest.raises(RankError, match="adding up numbers: another rank was lost, or did not answer in time"):
            world.barrier()
        assert time.monotonic() - started < 3.5


def test_stuck_rank_is_an_error_at_the_timeout():
    run_distributed(one_rank_is_stuck, 2)


def one_rank_never_comes() -> None:
    if os.environ["RANK"] == "1":
        return
    os.environ["WORLD_SIZE"] = "3"
    with pytest.raises(RankError, match=r"rank 0 of 3: ranks \[1, 2\] did not join in time"):
        connect(device="cpu", join_timeout_s=2)


def test_rank_that_never_joins_is_named():
    run_distributed(one_rank_never_comes, 2)
