"""Ranks that fail: whatever happens to one, all end in time and say which one it was and what it did."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from distributed import run_ranks
from tiny_runs import settings_for

from modelzoo.errors import ModelZooError, NonFiniteError, RankError, SaveError
from modelzoo.launch import BOARD_VARIABLE
from modelzoo.runtime import World, agree, connect, failing_together, find_latest, raise_together
from modelzoo.runtime.checkpoints.checkpoint import Identity, save_checkpoint
from modelzoo.training import SilentProgress, resume, train

TIMEOUT_S = 4.0
SPARE_S = 5.0
"""Ranks end this long after the timeout at the latest."""
PHASES = {
    "forward": "the forward of step 3",
    "backward": "the backward of step 3",
    "step": "the optimizer step 3",
    "save": "the save of step 2",
    "evaluation": "the evaluation after step 2",
    "load": "loading the checkpoint of step 2",
}


def settings_of(folder: str):
    changes = {"checkpoint__every": 2, "evaluation__every": 2, "train__max_steps": 4, "train__micro_batch_size": 1}
    return settings_for(Path(folder), parallel__timeout_s=TIMEOUT_S, parallel__zero=3, **changes)


def stop_at(victim: int, doing: str, number: int, note: Path) -> None:
    """Let this rank send itself a signal when it enters a phase, if it is the victim, and note when."""
    enter = World.enter

    def watched(world: World, what: str) -> None:
        enter(world, what)
        if world.rank == victim and what == doing:
            note.write_text(str(time.time()))
            os.kill(os.getpid(), number)

    World.enter = watched  # type: ignore[method-assign]  # in this process alone


def train_until(folder: str, board: str, victim: int, doing: str, number: int) -> None:
    if board:
        os.environ[BOARD_VARIABLE] = board
    died = Path(folder) / "died"
    stop_at(victim, doing, number, died)
    try:
        if doing.startswith("loading the checkpoint"):
            resume(Path(folder) / "runs" / "tiny-001", progress=SilentProgress())
        else:
            train(settings_of(folder), progress=SilentProgress())
    finally:
        assert time.time() - float(died.read_text()) < TIMEOUT_S + SPARE_S


def check_death(folder: Path, ranks: int, victim: int, phase: str, *, has_board: bool = True) -> None:
    settings_of(str(folder))
    if phase == "load":
        train(settings_of(str(folder)), progress=SilentProgress())
        run = folder / "runs" / "tiny-001"
        (run / "result.json").unlink()
        for step in (4,):
            (run / "checkpoints" / f"step-{step}").rename(run / f"gone-{step}")
    board = folder / "board"
    board.mkdir()
    doing = PHASES[phase]
    arguments = (str(folder), str(board) if has_board else "", victim, doing, signal.SIGKILL)
    failures = run_ranks(train_until, ranks, *arguments)
    assert sorted(failures) == list(range(ranks))
    assert failures[victim] == "exit code -9"
    for rank in set(range(ranks)) - {victim}:
        last = failures[rank].strip().splitlines()[-1]
        assert f"RankError: rank {victim} was lost in {doing}" in last, failures[rank]
    # the port, the lock and what was saved are free and whole: the run goes on
    run = folder / "runs" / "tiny-001"
    assert not find_latest(run / "checkpoints") or not find_latest(run / "checkpoints").skipped
    assert resume(run, progress=SilentProgress()).step == 4


@pytest.mark.parametrize(("phase", "ranks", "victim"), [("backward", 2, 0), ("save", 2, 1), ("forward", 3, 1)])
def test_death_of_a_rank_is_named_with_what_it_did(tmp_path, phase, ranks, victim):
    check_death(tmp_path, ranks, victim, phase)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_death_of_a_rank_anywhere_is_named(tmp_path, phase, ranks):
    check_death(tmp_path, ranks, (list(PHASES).index(phase) + ranks) % ranks, phase)


def test_death_is_named_from_the_store_alone(tmp_path):
    check_death(tmp_path, 3, 2, "step", has_board=False)


def stopped_rank(victim: int) -> None:
    with connect(timeout_s=2, device="cpu") as world, failing_together(world):
        world.enter("the backward of step 4")
        world.barrier()
        if world.rank == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        started = time.monotonic()
        try:
            world.barrier()
        finally:
            assert time.monotonic() - started < 2 + SPARE_S


@pytest.mark.parametrize(("ranks", "victim"), [(2, 1), (3, 0)])
def test_stopped_rank_is_named_with_the_collective_that_waited(tmp_path, ranks, victim, monkeypatch):
    failures = run_ranks(stopped_rank, ranks, victim, timeout_s=12)
    assert "still running" in failures[victim]
    for rank in set(range(ranks)) - {victim}:
        last = failures[rank].strip().splitlines()[-1]
        assert f"RankError: rank {victim} " in last, failures[rank]
        assert "waited for it in adding up numbers, in the backward of step 4" in last
    if victim:
        assert "RankError: rank 1 is stopped in the backward of step 4" in failures[0]


def late_rank() -> None:
    with connect(timeout_s=2, device="cpu") as world, failing_together(world):
        world.barrier()
        if world.rank == 1:
            world.enter("reading the batch of step 5")
            time.sleep(9)
            return
        world.enter("the forward of step 5")
        world.barrier()


def test_rank_that_runs_but_does_not_come_is_late(tmp_path):
    failures = run_ranks(late_rank, 3)
    for rank in (0, 2):
        assert "RankError: rank 1 is late: it runs, and is in reading the batch of step 5 since" in failures[rank]


def lone_error(kind: type[Exception]) -> None:
    with connect(timeout_s=20, device="cpu") as world, failing_together(world):
        world.enter("the forward of step 2")
        if world.rank == 0:
            raise kind("row 7: no room\n  more")
        started = time.monotonic()
        try:
            world.barrier()
        finally:
            assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", [SaveError, IndexError])
def test_error_of_one_rank_has_its_class_everywhere(kind):
    failures = run_ranks(lone_error, 3, kind)
    name = kind.__name__ if issubclass(kind, ModelZooError) else f"RankError: rank 0: {kind.__name__}"
    assert sorted(failures) == [0, 1, 2]
    for rank, text in failures.items():
        assert name in text
        assert "row 7: no room (in the forward of step 2)" in text
        assert (f"rank {rank} stopped with it" in text) == (rank != 0)


def bad_numbers(folder: str) -> None:
    """Each of the places where a value of one rank alone can be bad: loss or gradient, NaN or infinite, on each rank."""
    from modelzoo.models.model import ModelOutput
    from modelzoo.runtime import prepare
    from modelzoo.training.step import MicroBatch, take_step

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = torch.nn.Linear(4, 2)

        def forward(self, x):
            return ModelOutput(loss=self.map(x).square().mean())

    with connect(timeout_s=20, device="cpu") as world:
        torch.manual_seed(0)
        model = prepare(Tiny(), world)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = [parameter.to_local().clone() for parameter in model.parameters()]
        for place in ("loss", "gradient"):
            for value in (float("nan"), float("inf")):
                for rank in (0, 1):
                    x = torch.ones(1, 4)
                    handle = None
                    if world.rank == rank and place == "loss":
                        x[0, 0] = value
                    if world.rank == rank and place == "gradient":
                        handle = model.map.register_full_backward_pre_hook(
                            lambda module, grads, value=value: tuple(torch.full_like(grad, value) for grad in grads)
                        )
                    batch = MicroBatch({"x": x}, (10 + world.rank,), 1, 4)
                    with pytest.raises(NonFiniteError, match=r"step 9: loss .*the step was not taken") as raised:
                        take_step(model, optimizer, [batch], num_targets=2, clip_norm=1.0, world=world, step=9)
                    texts = world.gather(str(raised.value))
                    assert texts[0] == texts[1], texts
                    if place == "loss":
                        assert f"[{10 + rank}]" in texts[0]
                    assert "map.weight" in texts[0]
                    if handle is not None:
                        handle.remove()
                    optimizer.zero_grad(set_to_none=True)
        assert all(torch.equal(parameter.to_local(), old) for parameter, old in zip(model.parameters(), before, strict=True))


def test_bad_number_on_one_rank_stops_all_and_no_step_is_taken(tmp_path):
    failures = run_ranks(bad_numbers, 2, str(tmp_path))
    assert not failures, "\n".join(failures.values())


def other_facts() -> None:
    """One rank differs in its step, its settings, its names, or its dtype: all say so before anything is written."""
    with connect(timeout_s=20, device="cpu") as world:
        own = world.rank == 1
        for name, here, there in [
            ("saved step", "4", "5"),
            ("settings", "lr 1", "lr 2"),
            ("saved tensors", "a.weight", "a.weight, b.weight"),
            ("data fingerprint", "aa", "bb"),
        ]:
            with pytest.raises(RankError, match=f"{name}: rank 0 has {here}, rank 1 has {there}; expected the same"):
                agree(world, {name: there if own else here})
        folder = Path(os.environ["MODELZOO_TEST_FOLDER"])
        for change in ("step", "config", "names", "dtype"):
            model = torch.nn.Linear(2, 2)
            if own and change == "names":
                model.register_parameter("extra", torch.nn.Parameter(torch.ones(1)))
            if own and change == "dtype":
                model = model.to(torch.float64)
            identity = Identity("other" if own and change == "config" else "same", "data")
            with pytest.raises(RankError, match=r"rank 1"):
                save_checkpoint(
                    folder / change,
                    5 if own and change == "step" else 4,
                    model=model,
                    optimizer=None,
                    world=world,
                    state={},
                    identity=identity,
                )
            assert not list(folder.glob(f"{change}/step-*"))


def in_folder(folder: str) -> None:
    os.environ["MODELZOO_TEST_FOLDER"] = folder
    other_facts()


def test_ranks_that_differ_are_refused_before_anything_is_written(tmp_path):
    failures = run_ranks(in_folder, 2, str(tmp_path))
    assert not failures, "\n".join(failures.values())


def save_on_one_rank(folder: str) -> None:
    with connect(timeout_s=2, device="cpu") as world, failing_together(world):
        world.barrier()
        if world.rank == 0:
            options = {"model": torch.nn.Linear(2, 2), "optimizer": None, "world": world, "state": {}}
            save_checkpoint(Path(folder), 4, identity=Identity("config", "data"), **options)
        world.enter("the forward of step 5")
        world.barrier()


def test_save_on_one_rank_alone_is_refused_naming_the_others(tmp_path):
    failures = run_ranks(save_on_one_rank, 2, str(tmp_path / "checkpoints"))
    assert "RankError: rank 0: the save of step 4 is for all ranks: rank 1 did not come within 2 s" in failures[0]
    assert "it is in the forward of step 5; call it on every rank, at the same step" in failures[0]
    assert "RankError: rank 0: the save of step 4 is for all ranks" in failures[1] or "rank 0 is late" in failures[1]
    assert not list(tmp_path.glob("checkpoints/step-*"))


def full_disk_on_one_rank(folder: str) -> None:
    from modelzoo.runtime.checkpoints import saving

    if os.environ["RANK"] == "1":

        def refuse(*args, **options):
            raise OSError(28, "No space left on device")

        saving.write_tensors = refuse
    train(settings_of(folder), progress=SilentProgress())


def test_full_disk_on_one_rank_is_a_failed_save_of_all(tmp_path):
    settings_of(str(tmp_path))
    failures = run_ranks(full_disk_on_one_rank, 2, str(tmp_path))
    assert sorted(failures) == [0, 1]
    for text in failures.values():
        assert "SaveError: rank 1: save of step 2" in text
        assert "No space left on device" in text
    assert not list(tmp_path.glob("runs/*/checkpoints/.tmp-*"))


def everybody_fails() -> None:
    with connect(timeout_s=20, device="cpu") as world, failing_together(world):
        raise_together(world, SaveError(f"no room on {world.rank}"))


def test_error_of_all_ranks_is_raised_as_agreed():
    failures = run_ranks(everybody_fails, 2)
    assert all("SaveError: rank 0: no room on 0 (also on rank 1)" in text for text in failures.values())
