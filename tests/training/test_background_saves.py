"""Runs that save in the background."""

import pytest
from test_runs import StopAt, assert_same_end
from tiny_runs import settings_for

from modelzoo.errors import SaveError
from modelzoo.runtime import find_latest
from modelzoo.runtime.checkpoints import durable
from modelzoo.training import SilentProgress, resume, train


def test_run_is_the_same_with_saves_in_the_background(tmp_path):
    whole = train(settings_for(tmp_path, checkpoint__every=1), progress=SilentProgress())
    background = train(settings_for(tmp_path, checkpoint__every=1, checkpoint__background=True), progress=SilentProgress())
    for step in range(1, 13):
        assert_same_end(whole, background, step)


def test_stopped_run_has_its_last_state_on_disk(tmp_path):
    settings = settings_for(tmp_path, checkpoint__background=True)
    whole = train(settings, progress=SilentProgress())
    stopped = train(settings, progress=StopAt(7))
    assert find_latest(stopped.folder / "checkpoints").manifest.step == 7
    assert_same_end(whole, resume(stopped.folder, progress=SilentProgress()), 12)


def test_failed_save_stops_the_run_at_the_next_step(tmp_path, monkeypatch):
    steps = []

    class Full(SilentProgress):
        def step(self, report):
            steps.append(report.step)
            if report.step == 5:
                monkeypatch.setattr(durable, "_write_all", fail)

    def fail(handle, piece):
        raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match=r"save of step 5 at .*: No space left on device"):
        train(settings_for(tmp_path, checkpoint__every=5, checkpoint__background=True, train__epochs=6.0), progress=Full())
    assert 5 <= max(steps) <= 10
    (run,) = (tmp_path / "runs").iterdir()
    assert not list((run / "checkpoints").glob("*"))
