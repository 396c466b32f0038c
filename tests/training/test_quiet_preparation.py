"""Rows are made ready before processes meet, in this process alone, and a run from local files talks to nobody."""

import socket

import pytest
from audited import audited
from tiny_runs import settings_for

from modelzoo.training import SilentProgress, runs, train
from modelzoo.training.preparation import prepare

STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen", "os.system", "os.exec"}


def test_rows_are_ready_before_processes_meet(tmp_path, monkeypatch):
    order = []

    def note(name):
        real = getattr(runs, name)
        monkeypatch.setattr(runs, name, lambda *given, **options: (order.append(name), real(*given, **options))[1])

    for name in ("prepare", "connect", "load_for_run"):
        note(name)
    train(settings_for(tmp_path, train__max_steps=1), progress=SilentProgress())
    assert order == ["prepare", "connect", "load_for_run"]


def test_tokenizing_starts_no_process(tmp_path):
    settings = settings_for(tmp_path)
    with audited(STARTS) as started:
        assert len(prepare(settings).train) == 22
    assert started == []


def test_a_run_from_local_files_opens_no_socket(tmp_path, monkeypatch):
    tried = []

    def refuse(*arguments, **options):
        tried.append(arguments)
        raise OSError("no sockets here")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    result = train(settings_for(tmp_path, train__max_steps=2), progress=SilentProgress())
    assert (result.stopped, tried) == ("finished", [])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_stopped_at_the_end_of_an_epoch_does_not_skip_the_next(tmp_path, epochs):
    from test_runs import StopAt, assert_same_end

    settings = settings_for(tmp_path, train__epochs=3.0)
    whole = train(settings, progress=SilentProgress())
    assert whole.total_steps == 18
    stopped = train(settings, progress=StopAt(6 * epochs))
    assert (stopped.stopped, stopped.step) == ("preempted", 6 * epochs)
    resumed = runs.resume(stopped.folder, progress=SilentProgress())
    assert (resumed.stopped, resumed.step) == ("finished", 18)
    assert_same_end(whole, resumed, 18)
