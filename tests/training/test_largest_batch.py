"""The largest batch of a run is computed after its first step: it fits or the run ends there, and nothing else changes."""

from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from safetensors.torch import load_file
from tiny_runs import Notes, rows, settings_for, write_rows

from modelzoo.data import BatchStream
from modelzoo.errors import OutOfMemoryError
from modelzoo.models.bert import Bert
from modelzoo.report import read_records
from modelzoo.training import SilentProgress, loop, train
from modelzoo.training.largest_batch import Largest, find_largest


def records_of(folder) -> list[dict]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in read_records(folder / "metrics.jsonl")]


def with_one_long_row(folder, place: int):
    settings = settings_for(folder, train__epochs=1.0)
    some = rows(22, longest=4)
    some[place] = {**some[place], "passage": " ".join(["cat"] * 20)}
    write_rows(folder / "train.jsonl", some)
    return settings


def narrow_forward(most: int):
    plain = Bert.forward

    def forward(self, input_ids, *arguments, **options):
        if self.training and input_ids.numel() > most:
            raise MemoryError
        return plain(self, input_ids, *arguments, **options)

    return forward


def test_a_run_whose_largest_batch_does_not_fit_ends_after_its_first_step(tmp_path, monkeypatch):
    place = int(order_of([9] * 22, settings_for(tmp_path))[13])
    settings = with_one_long_row(tmp_path, place)
    monkeypatch.setattr(Bert, "forward", narrow_forward(70))
    progress = Notes()
    message = r"step 4, the largest to come: memory ran out; its largest micro-batch is 4 x "
    with pytest.raises(OutOfMemoryError, match=message) as raised:
        train(settings, progress=progress)
    assert progress.steps == [1]
    assert "lower train.micro_batch_size" in str(raised.value)


def test_it_is_said_and_changes_nothing(tmp_path, monkeypatch):
    settings = with_one_long_row(tmp_path, int(order_of([9] * 22, settings_for(tmp_path))[13]))
    progress = Notes()
    looked = train(settings, progress=progress)
    assert any("the largest batch to come" in note and "fits" in note for note in progress.lines), progress.lines
    monkeypatch.setattr(loop, "find_largest", lambda *arguments, **options: None)
    plain = train(settings, progress=SilentProgress())
    assert records_of(looked.folder) == records_of(plain.folder)
    ours, theirs = (load_file(result.final / "model.safetensors") for result in (looked, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    reports = [read.read_text() for read in (looked.folder / "report.txt", plain.folder / "report.txt")]
    assert all("(average of 6)" in text for text in reports)


def on_two_ranks(folder: str, zero: int, is_looked_for: bool) -> None:
    if not is_looked_for:
        loop.find_largest = lambda *arguments, **options: None
    changes = {"parallel__zero": zero, "train__micro_batch_size": 1, "output__name": f"zero{zero}-{is_looked_for}"}
    train(settings_for(Path(folder), train__epochs=1.0, **changes), progress=SilentProgress())


@pytest.mark.parametrize("zero", [0, pytest.param(2, marks=pytest.mark.slow), 3])
def test_it_changes_nothing_on_two_ranks(tmp_path, zero):
    with_one_long_row(tmp_path, int(order_of([9] * 22, settings_for(tmp_path))[13]))
    for is_looked_for in (True, False):
        run_distributed(on_two_ranks, 2, str(tmp_path), zero, is_looked_for)
    looked, plain = (tmp_path / "runs" / f"zero{zero}-{each}-001" for each in (True, False))
    assert records_of(looked) == records_of(plain)
    ours, theirs = (load_file(run / "final" / "model.safetensors") for run in (looked, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    sent = [
        next(line for line in (run / "report.txt").read_text().splitlines() if line.startswith("sent")) for run in (looked, plain)
    ]
    assert sent[0] == sent[1]


def test_nothing_is_computed_twice_where_no_batch_is_larger_than_the_first(tmp_path):
    settings = settings_for(tmp_path, train__epochs=1.0)
    assert find_largest([9] * 22, settings, position=0, steps=6, data_ranks=1) is None


@pytest.mark.parametrize("rows_at_once", [None, 1, 2])
def test_the_largest_is_what_a_process_holds_at_once(tmp_path, rows_at_once):
    settings = settings_for(tmp_path, train__epochs=1.0, train__micro_batch_size=rows_at_once)
    order = order_of([1] * 16, settings)
    in_order = [[9, 9, 9, 9], [1, 1, 1, 1], [30, 1, 1, 1], [15, 15, 15, 15]]
    lengths = [0] * 16
    for place, index in enumerate(order):
        lengths[index] = in_order[place // 4][place % 4]
    found = find_largest(lengths, settings, position=0, steps=4, data_ranks=1)
    step, tokens = {None: (4, 60), 1: (3, 30), 2: (3, 31)}[rows_at_once]
    assert found == Largest(step, 0, tuple(order[4 * step - 4 : 4 * step]), tokens)
    assert find_largest(lengths, settings, position=0, steps=2, data_ranks=1) is None
    assert find_largest(lengths, settings, position=4, steps=2, data_ranks=1) is None  # the next step sees to it


def order_of(lengths, settings) -> list[int]:
    return BatchStream(lengths, batch_size=4, seed=settings.train.seed).order(0).tolist()
