"""Runs that are stopped and resumed several times within one epoch see every sample once and end bit for bit alike."""

import json
import re

import pytest
from test_runs import StopAt, assert_same_end
from tiny_runs import Notes, rows, settings_for, write_rows

from modelzoo.data import BatchStream, batches
from modelzoo.errors import CheckpointError
from modelzoo.runtime import set_aside
from modelzoo.training import SilentProgress, loop, resume, train


@pytest.mark.parametrize("seed", range(4))
def test_five_stops_within_one_epoch_change_nothing(tmp_path, monkeypatch, seed, record_property):
    settings = settings_for(tmp_path, train__epochs=1.0, train__seed=seed)
    write_rows(tmp_path / "train.jsonl", rows(46, seed=3))
    seen = []
    build = loop.build_micro_batches

    def noted(dataset, indices, **options):
        seen.append(list(indices))
        return build(dataset, indices, **options)

    monkeypatch.setattr(loop, "build_micro_batches", noted)
    whole = train(settings, progress=SilentProgress())
    expected, order = sorted(index for batch in seen for index in batch), list(seen)
    assert expected == list(range(46))
    seen.clear()
    # a run that is asked to stop has built the next batch already; it is built again, and trained on, after the resume
    result = train(settings, progress=StopAt(1))
    trained = seen[: result.step]
    for stop in (3, 5, 7, 9, None):
        seen.clear()
        before = result.step
        result = resume(result.folder, progress=StopAt(stop) if stop else SilentProgress())
        trained += seen[: result.step - before]
    assert trained == order
    assert result.stopped == "finished"
    assert_same_end(whole, result, 12)
    record_property("stops within an epoch", 5)


def test_a_resumed_run_proves_that_its_order_goes_on(tmp_path, monkeypatch):
    settings = settings_for(tmp_path)
    stopped = train(settings, progress=StopAt(7))
    stream = BatchStream([9] * 22, batch_size=4, seed=7, position=26)
    following = next(stream)
    state = json.loads((stopped.folder / "checkpoints" / "step-7" / "state.json").read_text())
    assert state["state"]["loop"]["next_samples"] == following

    def another_order(seed, stream, epoch, *, count, plain=batches.draw):
        return plain(seed + 1, stream, epoch, count=count)

    with monkeypatch.context() as changed:
        changed.setattr(batches, "draw", another_order)
        with pytest.raises(
            CheckpointError, match=rf"step-7: expected the samples {re.escape(str(following))} next, the order is now"
        ):
            resume(stopped.folder, progress=SilentProgress())
    done = resume(stopped.folder, progress=(notes := Notes()))
    assert f"next samples {', '.join(map(str, following))}, as before" in notes.text
    assert done.stopped == "finished"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows_of_a_forward", [None, 2])
def test_every_precision_and_accumulation_resumes_bit_for_bit(tmp_path, precision, rows_of_a_forward):
    settings = settings_for(tmp_path, parallel__precision=precision, train__micro_batch_size=rows_of_a_forward)
    whole = train(settings, progress=SilentProgress())
    stopped = train(settings, progress=StopAt(5))
    resumed = resume(stopped.folder, progress=SilentProgress())
    assert (whole.stopped, stopped.stopped, resumed.stopped) == ("finished", "preempted", "finished")
    assert_same_end(whole, resumed, 12)
    states = [json.loads((run.folder / "checkpoints" / "step-12" / "state.json").read_text()) for run in (whole, resumed)]
    for state in states:
        del state["generation"], state["state"]["loop"]["seconds"]
    assert states[0] == states[1]
    assert states[0]["state"]["loop"]["loss_scale"]["good_steps"] > 0 or precision != "float16"


def test_best_weights_that_are_gone_are_noticed_at_the_start(tmp_path):
    notes = []

    class Notes(SilentProgress):
        def note(self, text):
            notes.append(text)

    settings = settings_for(tmp_path, checkpoint__every=2, evaluation__every=4, evaluation__metric="loss")
    stopped = train(settings, progress=StopAt(7))
    best = stopped.best_step
    assert best == 4
    checkpoints = stopped.folder / "checkpoints"
    (checkpoints / f"step-{best}" / "manifest.json").unlink()
    result = resume(stopped.folder, progress=Notes())
    assert any(f"the weights of step {best} are lost, the next evaluation is the best one: " in text for text in notes)
    assert result.stopped == "finished"
    assert result.best_step in (8, 12)
    assert set_aside(checkpoints, 12) == []
