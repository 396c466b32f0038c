import io
import logging
import re
import sys

import pytest
from rich.console import Console

from modelzoo.training.periods import is_due, times_due
from modelzoo.training.progress.choice import choose_progress
from modelzoo.training.progress.live import LiveProgress
from modelzoo.training.progress.pace import Pace
from modelzoo.training.progress.progress import LineProgress, StepReport, time_text
from modelzoo.training.run_log import run_log


def report(step=3, total_steps=20, **changes):
    facts = {
        "epoch": 0.5,
        "loss": 0.4123,
        "lr": 1.1e-5,
        "grad_norm": 1.0,
        "tokens_per_s": 9812.0,
        "samples_per_s": 40.0,
        "wait_share": 0.02,
        "memory_bytes": 3 * 2**29,
        "eta_s": 78.0,
    }
    return StepReport(step=step, total_steps=total_steps, **{**facts, **changes})


def test_lines_are_few_and_hold_all_facts(caplog):
    progress = LineProgress(every_s=1000)
    with caplog.at_level(logging.INFO, "modelzoo"):
        for step in range(1, 21):
            progress.step(report(step))
    assert [record.getMessage() for record in caplog.records] == [
        f"step={step}/20 epoch=0.50 loss=0.4123 lr=1.10e-05 tokens_s=9812 samples_s=40.0 wait=2% memory_gib=1.50 eta=1:18"
        for step in (1, 20)
    ]


def test_lines_come_again_after_their_time(caplog):
    progress = LineProgress(every_s=1e-9)
    with caplog.at_level(logging.INFO, "modelzoo"):
        for step in range(1, 6):
            progress.step(report(step))
    assert len(caplog.records) == 5


def test_evaluations_are_always_told(caplog):
    with caplog.at_level(logging.INFO, "modelzoo"):
        LineProgress(1000).evaluated(6, {"accuracy": 0.5, "loss": 0.25}, is_best=True, seconds=1.25)
    assert caplog.messages == ["step 6   eval accuracy 0.5000  loss 0.2500   1.2 s   best"]


def test_live_line_shows_the_same_on_a_terminal():
    out = io.StringIO()
    progress = LiveProgress(Console(file=out, force_terminal=True, width=150))
    progress.step(report())
    progress.close()
    text = out.getvalue()
    assert all(fact in text for fact in ("epoch 0.50", "3/20", "loss 0.412", "lr 1.1e-05", "9,812 tok/s", "1.5 GiB", "ETA 1:18"))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_live_line_drops_facts_where_the_terminal_is_narrow_never_the_step(width):
    out = io.StringIO()
    progress = LiveProgress(Console(file=out, force_terminal=True, color_system=None, width=width))
    progress.step(report(step=7312, total_steps=14730, epoch=12.25, tokens_per_s=1_234_567.0, samples_per_s=23456.7))
    progress.close()
    line = [row for row in re.split(r"[\r\n]|\x1b\[[0-9;?]*[a-zA-Z]", out.getvalue()) if row.strip()][-1]
    assert line.startswith("epoch 12.25 ")
    assert " 7312/14730 loss 0.412 " in line
    assert "ETA 1:18" in line
    assert "…" not in line
    bar = line.removeprefix("epoch 12.25 ").partition(" 7312/")[0]
    assert len(bar) >= 10
    assert len(line.rstrip()) <= width
    assert ("1,234,567 tok/s" in line) == (width >= 80)
    assert ("(all)" in line) == (width >= 120)


def test_no_live_line_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(choose_progress(5.0), LineProgress)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(choose_progress(5.0), LiveProgress)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (78.2, "1:18"), (3600 * 3 + 1200, "3:20:00"), (-3, "0:00")])
def test_times_are_readable(seconds, text):
    assert time_text(seconds) == text


def test_time_to_the_end_counts_steps_and_evaluations():
    pace = Pace(total_steps=10, evaluation_tokens=300)
    for _ in range(4):
        pace.add_step(2.0, 0.5, tokens=100, samples=10)
    assert (pace.tokens_per_s, pace.samples_per_s, pace.wait_share) == (50.0, 5.0, 0.25)
    # a forward alone takes a third of a step: 300 tokens at 150 tokens/s
    assert pace.eta_s(4, evaluations_left=2) == pytest.approx(6 * 2.0 + 2 * 2.0)
    pace.add_evaluation(7.0)
    assert pace.eta_s(4, evaluations_left=2) == pytest.approx(6 * 2.0 + 2 * 7.0)
    assert Pace(10).eta_s(0, 3) == 0.0


def due_steps(period, batch_size, samples, epochs=2):
    before, found = 0, []
    for step in range(1, 1000):
        if before >= epochs * samples:
            return found
        after = min(before + batch_size, (before // samples + 1) * samples)
        if is_due(period, step=step, before=before, after=after, samples_per_epoch=samples):
            found.append(step)
        before = after


def test_periods_in_epochs_end_with_the_epoch():
    assert due_steps("1ep", 4, 22) == [6, 12]
    assert due_steps("0.5ep", 4, 22) == [3, 6, 9, 12]
    assert due_steps("2ep", 4, 22) == [12]
    assert due_steps("0.1ep", 1, 30) == list(range(3, 61, 3))


def test_periods_in_steps_ignore_epochs():
    assert due_steps(5, 4, 22) == [5, 10]
    assert due_steps(None, 4, 22) == []
    assert times_due(5, steps=12, epochs=2) == 2.4
    assert times_due("0.5ep", steps=12, epochs=2) == 4.0
    assert times_due(None, steps=12, epochs=2) == 0.0


def test_log_goes_to_the_file_and_settings_are_put_back(tmp_path, capsys):
    logger = logging.getLogger("modelzoo")
    before = (logger.level, list(logger.handlers))
    with run_log(tmp_path / "log.txt"):
        logging.getLogger("modelzoo.training").info("step 3")
        logging.getLogger("elsewhere").warning("not ours")
    assert (logger.level, list(logger.handlers)) == before
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line.endswith("Z INFO step 3")


def test_log_goes_to_stderr_where_nobody_shows_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("modelzoo"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("modelzoo"), "handlers", [])
    with run_log(tmp_path / "log.txt"):
        logging.getLogger("modelzoo.training").info("step 3")
    assert capsys.readouterr().err == "step 3\n"


def test_log_lines_stand_alone_between_live_lines(caplog):
    out = io.StringIO()

    class Terminal(logging.Handler):
        def emit(self, record):
            out.write(f"<{record.getMessage()}>\n")

    handler = Terminal()
    logging.getLogger("modelzoo.training").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "modelzoo"):
            progress = LiveProgress(Console(file=out, force_terminal=True, width=150))
            progress.step(report(1, 2))
            progress.note("saved")
            progress.step(report(2, 2))
            progress.note("done")
            progress.close()
    finally:
        logging.getLogger("modelzoo.training").removeHandler(handler)
    for text in ("saved", "done"):
        before = out.getvalue().split(f"<{text}>")[0]
        # the live line was erased: "erase the whole line" is the last thing written before the log line
        assert before.rstrip("\r\n").endswith("\x1b[2K")
    assert "epoch" not in out.getvalue().split("<done>")[1], "nothing is shown once all steps are done"
