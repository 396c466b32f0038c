"""Ctrl-C ends a command whatever a library makes of it."""

import builtins
import os
import signal
import sys
from typing import Any

import pytest

from modelzoo import __main__ as entry
from modelzoo.cli import main
from modelzoo.launch import CtrlC
from modelzoo.training.signals import StopSignals


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def swallow() -> None:
    try:
        press()
    except KeyboardInterrupt:
        return
    raise AssertionError("there was no KeyboardInterrupt")


def test_a_swallowed_ctrl_c_is_raised_before_training_begins() -> None:
    before = signal.getsignal(signal.SIGINT)
    with CtrlC() as ctrl_c:
        assert not ctrl_c.was_pressed
        with StopSignals() as signals:
            assert signals.wanted == "finished"
        swallow()
        with pytest.raises(KeyboardInterrupt), StopSignals():
            pass
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with CtrlC() as ctrl_c:
            press()
        assert not ctrl_c.was_pressed
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_that_a_library_made_of_ctrl_c_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*words: Any, **options: Any) -> int:
        swallow()
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr(sys.modules["modelzoo.cli.main"], "build_app", lambda: app)
    assert main(["check", "demo"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_ctrl_c_while_the_command_is_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = builtins.__import__

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "modelzoo.cli":
            raise KeyboardInterrupt
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert entry.main() == 130
    assert capsys.readouterr().err == "error: interrupted\n"
