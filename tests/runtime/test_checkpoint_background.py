"""Saving in the background: the values are those at the call, and nothing incomplete is ever offered."""

import os
import signal
import threading
import time

import pytest
import torch
from distributed import run_distributed
from tiny_model import adamw, build, step

from modelzoo.errors import SaveError
from modelzoo.runtime import (
    CheckpointSaver,
    Identity,
    connect,
    find_latest,
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    prepare,
    step_folders,
    sweep,
)
from modelzoo.runtime.checkpoints import durable, saver

IDENTITY = Identity("config", "data")


@pytest.fixture
def world():
    with connect(device="cpu") as one:
        yield one


def trained(steps=2, seed=0):
    model = build(seed=seed)
    optimizer = adamw(model)
    for number in range(steps):
        step(model, optimizer, seed=number)
    return model, optimizer


def saver_of(folder, world, **options):
    return CheckpointSaver(folder, world, IDENTITY, **{"keep_last": 2, "background": True, **options})


class Gate:
    """Holds every write back until it is opened, and then lets it fail if told to."""

    def __init__(self, monkeypatch):
        self.opened, self.error = threading.Event(), None
        write = durable._write_all

        def held(handle, piece):
            if threading.current_thread() is not threading.main_thread():
                assert self.opened.wait(30)
                if self.error is not None:
                    raise self.error
            write(handle, piece)

        monkeypatch.setattr(durable, "_write_all", held)


@pytest.mark.parametrize("seed", range(5))
def test_values_are_those_at_the_call_and_nothing_shows_until_all_is_written(tmp_path, world, monkeypatch, seed):
    model, optimizer = trained(seed=seed)
    background = saver_of(tmp_path, world)
    background.save(1, model=model, optimizer=optimizer, state={"position": 1})
    background.settle()
    gate = Gate(monkeypatch)
    background.save(2, model=model, optimizer=optimizer, state={"position": 2})
    expected = [{name: tensor.clone() for name, tensor in some.items()} for some in states(model, optimizer)]
    for number in range(3):
        step(model, optimizer, seed=50 + number)
    assert background.counts() == (False, False)
    assert find_latest(tmp_path).manifest.step == 1
    gate.opened.set()
    background.settle()
    assert find_latest(tmp_path).manifest.step == 2
    other, fresh = trained(0, seed=9)
    assert load_checkpoint(tmp_path / "step-2", model=other, optimizer=fresh, world=world) == {"position": 2}
    for ours, theirs in zip(states(other, fresh), expected, strict=True):
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def states(model, optimizer):
    return model_tensors(model), optimizer_tensors(model, optimizer)


@pytest.mark.parametrize("number", range(5))
def test_failed_save_is_raised_when_it_is_settled_and_the_old_one_stays(tmp_path, world, monkeypatch, number):
    model, optimizer = trained()
    background = saver_of(tmp_path, world)
    background.save(1, model=model, optimizer=optimizer, state={})
    background.settle()
    gate = Gate(monkeypatch)
    gate.error = OSError(28, "No space left on device")
    background.save(2, model=model, optimizer=optimizer, state={})
    gate.opened.set()
    while background.counts() != (True, True):
        time.sleep(0.001)
    with pytest.raises(SaveError, match=r"save of step 2 at .*: No space left on device; it needs .*intact"):
        background.save(3, model=model, optimizer=optimizer, state={}) if number % 2 else background.settle()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    gate.error = None
    background.save(3, model=model, optimizer=optimizer, state={})
    background.settle()
    assert find_latest(tmp_path).manifest.step == 3


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8])
def test_kill_in_flight_leaves_the_old_one(tmp_path, world, monkeypatch, delay_ms):
    model, optimizer = trained()
    background = saver_of(tmp_path, world)
    background.save(1, model=model, optimizer=optimizer, state={})
    background.settle()
    child = os.fork()
    if child == 0:
        Gate(monkeypatch)
        background.save(2, model=model, optimizer=optimizer, state={})
        while True:
            time.sleep(1)
    time.sleep(0.05 + delay_ms / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert find_latest(tmp_path).manifest.step == 1
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_next_save_waits_for_the_one_before_and_old_ones_go(tmp_path, world):
    model, optimizer = trained()
    background = saver_of(tmp_path, world)
    for number in range(1, 6):
        background.save(number, model=model, optimizer=optimizer, state={}, keep=[1])
        assert [path.name for path in step_folders(tmp_path)][:1] == ([f"step-{number - 1}"] if number > 1 else [])
    background.settle()
    assert [path.name for path in step_folders(tmp_path)] == ["step-5", "step-4", "step-1"]


def test_abandoned_save_leaves_nothing(tmp_path, world):
    model, optimizer = trained()
    background = saver_of(tmp_path, world)
    background.save(1, model=model, optimizer=optimizer, state={})
    background.abandon()
    background.settle()
    assert list(tmp_path.iterdir()) == []


def test_without_memory_for_the_copy_it_is_written_at_once(tmp_path, world, monkeypatch, caplog):
    monkeypatch.setattr(saver, "free_bytes", lambda device: 5000)
    model, optimizer = trained()
    background = saver_of(tmp_path, world)
    background.save(1, model=model, optimizer=optimizer, state={})
    assert background.counts() == (True, False)
    assert "step-1: the copy for a background save takes " in caplog.text
    assert "of 4.9 KiB free" in caplog.text
    background.settle()
    assert find_latest(tmp_path).manifest.step == 1


def background_on_ranks(folder: str) -> None:
    from pathlib import Path

    with connect(device="cpu") as world:
        model = prepare(build(), world)
        background = saver_of(Path(folder), world)
        background.save(1, model=model, optimizer=None, state={})
        background.settle()
        write = durable._write_all

        def fail(handle, piece):
            raise OSError(28, "No space left on device")

        if world.rank == 1:
            durable._write_all = fail
        background.save(2, model=model, optimizer=None, state={})
        while not background.counts()[0]:
            time.sleep(0.001)
        written, unwritten = world.sum(background.counts())
        assert (written, unwritten) == (2, 1)
        with pytest.raises(SaveError, match=r"^rank 1: save of step 2 at .*No space left on device"):
            background.settle()
        durable._write_all = write
        assert [path.name for path in Path(folder).iterdir()] == ["step-1"]
        background.save(3, model=model, optimizer=None, state={})
        background.settle()
        assert find_latest(Path(folder), world).manifest.step == 3


def test_failure_on_one_rank_is_raised_on_all(tmp_path):
    run_distributed(background_on_ranks, 2, str(tmp_path))
