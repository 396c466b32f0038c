"""Runs that are killed without warning, at any moment, go on bit for bit."""

import multiprocessing
import random
from pathlib import Path

import pytest
import torch
from distributed import PRELOADED
from safetensors.torch import load_file
from tiny_runs import settings_for

from modelzoo.runtime import find_latest
from modelzoo.training import SilentProgress, resume, train
from modelzoo.training.records import read_records


def settings_of(folder: Path, **changes):
    return settings_for(folder, checkpoint__every=1, train__epochs=4.0, **changes)


def newest_run(folder: Path) -> Path | None:
    """The run that was begun last; one that was killed before its settings were written is none."""
    return max((path.parent for path in folder.glob("runs/tiny-*/resolved.yaml")), default=None)


def start_or_go_on(folder: str) -> None:
    torch.set_num_threads(1)
    run = newest_run(Path(folder))
    if run is None:
        train(settings_of(Path(folder)), progress=SilentProgress())
    else:
        resume(run, progress=SilentProgress())


def kill_after(folder: Path, seconds: float) -> bool:
    """Let a process train for a while and kill it; return whether it had ended by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=start_or_go_on, args=(str(folder),))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == 0


def check_kills(folder: Path, kills: int, seed: int = 0) -> None:
    expected = train(settings_of(folder, output__name="whole"), progress=SilentProgress())
    generator = random.Random(seed)
    for _ in range(kills):
        ended = kill_after(folder, generator.uniform(0.1, 1.5))
        run = newest_run(folder)
        if ended:
            break
        found = find_latest(run / "checkpoints") if run else None
        assert found is None or not found.skipped
    start_or_go_on(str(folder))
    run = newest_run(folder)
    assert run is not None
    for place in ("checkpoints/step-24/model.safetensors", "final/model.safetensors"):
        ours, theirs = load_file(run / place), load_file(expected.folder / place)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    timeless = [
        [{key: value for key, value in record.items() if key != "seconds"} for record in read_records(each / "metrics.jsonl")]
        for each in (run, expected.folder)
    ]
    assert timeless[0] == timeless[1]
    assert not list((run / "checkpoints").glob(".tmp-*"))


def test_killed_run_goes_on_bit_for_bit(tmp_path):
    check_kills(tmp_path, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_run_killed_many_times_goes_on_bit_for_bit(tmp_path, number):
    check_kills(tmp_path, kills=10, seed=number)
