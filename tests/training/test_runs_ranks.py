import os
from pathlib import Path

import pytest
import torch
from distributed import run_distributed, run_ranks
from safetensors.torch import load_file
from tiny_runs import settings_for

from modelzoo.config import RunSettings
from modelzoo.report import read_records
from modelzoo.training import RunResult, SilentProgress, resume, train


def settings_of(folder: str, name: str) -> RunSettings:
    """No dropout, which would draw differently on each rank, and the rate of a fine-tuning: Adam moves a weight whose gradient is
    all rounding by a share of the rate, also on one process when the micro-batches are cut differently."""
    changes = {"model__dropout": 0.0, "train__micro_batch_size": 2, "optimizer__lr": 1e-4, "output__name": name}
    changes |= {"train__epochs": 1.0, "evaluation__every": "0.5ep"}
    return settings_for(Path(folder), **changes)


def start(folder: str, name: str) -> None:
    train(settings_of(folder, name), progress=SilentProgress())


def go_on(folder: str) -> None:
    resume(folder, progress=SilentProgress())


def close_enough(first: Path, second: Path, skip=("seconds",)) -> None:
    """Equal numbers of steps, samples and tokens, and losses within 1e-6."""
    for ours, theirs in zip(read_records(first), read_records(second), strict=True):
        for key in theirs:
            if key not in skip:
                assert ours[key] == pytest.approx(theirs[key], abs=1e-6), (key, ours, theirs)


def test_two_ranks_train_and_evaluate_as_one_process_does(tmp_path):
    settings_for(tmp_path)
    start(str(tmp_path), "one")
    run_distributed(start, 2, str(tmp_path), "two")
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    close_enough(two / "metrics.jsonl", one / "metrics.jsonl")
    for place in ("final/model.safetensors",):
        ours, theirs = load_file(two / place), load_file(one / place)
        assert list(ours) == list(theirs)
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


def stop_on_rank_one(folder: str) -> None:
    """Only rank 1 hears of the preemption; all save and stop."""
    import signal

    from modelzoo.training.loop import Loop

    settings = settings_of(folder, "stopped")
    evaluate = Loop._evaluate_if_due

    def preempt(loop: Loop, before: int) -> bool:
        if loop.state.step == 4 and loop.world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(loop, before)

    Loop._evaluate_if_due = preempt
    result = train(settings, progress=SilentProgress())
    assert isinstance(result, RunResult)
    assert (result.stopped, result.step) == ("preempted", 4)


def test_preemption_of_one_rank_stops_all_and_another_number_resumes(tmp_path):
    settings_for(tmp_path)
    start(str(tmp_path), "one")
    run_distributed(stop_on_rank_one, 2, str(tmp_path))
    run_distributed(go_on, 3, str(tmp_path / "runs" / "stopped-001"))
    close_enough(tmp_path / "runs" / "stopped-001" / "metrics.jsonl", tmp_path / "runs" / "one-001" / "metrics.jsonl")


def bad_row_on_rank_one(folder: str) -> None:
    """Rank 1 alone cannot build its share of step 3."""
    from modelzoo.training import step as steps

    settings = settings_for(Path(folder))
    build = steps._micro_batch
    calls = {"count": 0}

    def fail(dataset, indices, epoch, device):
        calls["count"] += 1
        if os.environ["RANK"] == "1" and calls["count"] == 3:
            raise ValueError("item 5 is broken")
        return build(dataset, indices, epoch, device)

    steps._micro_batch = fail
    train(settings, progress=SilentProgress())


def test_bad_batch_on_one_rank_stops_all_naming_it(tmp_path):
    settings_for(tmp_path)
    failures = run_ranks(bad_row_on_rank_one, 2, str(tmp_path))
    assert sorted(failures) == [0, 1]
    for text in failures.values():
        assert "RankError: rank 1: ValueError: item 5 is broken" in text


def other_data_on_rank_one(folder: str) -> None:
    settings = settings_for(Path(folder))
    if os.environ["RANK"] == "1":
        settings = settings_for(Path(folder), train__seed=8)
    train(settings, progress=SilentProgress())


def test_ranks_with_other_settings_are_refused_before_anything_is_written(tmp_path):
    settings_for(tmp_path)
    failures = run_ranks(other_data_on_rank_one, 2, str(tmp_path))
    assert all("RankError: " in text and "rank 0 has " in text for text in failures.values())
    assert not (tmp_path / "runs").exists()


def wrong_file_on_rank_one(folder: str) -> None:
    settings = settings_for(Path(folder))
    if os.environ["RANK"] == "1":
        settings = settings_for(Path(folder), data__train=str(Path(folder) / "absent.jsonl"))
    train(settings, progress=SilentProgress())


def test_preparation_that_fails_on_one_rank_stops_all(tmp_path):
    settings_for(tmp_path)
    failures = run_ranks(wrong_file_on_rank_one, 2, str(tmp_path))
    assert sorted(failures) == [0, 1]
    assert all("DataError: rank 1: " in text and "absent.jsonl" in text for text in failures.values())
