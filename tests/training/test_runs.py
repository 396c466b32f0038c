import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import rows, settings_for, write_rows

from modelzoo.config import load_settings
from modelzoo.errors import CheckpointError, DataError, InputError, NonFiniteError, SaveError
from modelzoo.report import read_records, read_run, summarize
from modelzoo.runtime import find_latest
from modelzoo.training import SilentProgress, resume, train
from modelzoo.training.loop import Loop
from modelzoo.training.run_directory import RunDirectory


class StopAt(SilentProgress):
    """Sends this process a signal after some steps."""

    def __init__(self, *steps, number=signal.SIGTERM):
        self.steps, self.number = steps, number

    def step(self, report):
        if report.step in self.steps:
            os.kill(os.getpid(), self.number)


def timeless(path):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in read_records(path)]


def assert_same_end(first, second, step):
    for name in ("model", "optimizer", "random"):
        ours, theirs = (load_file(run.folder / "checkpoints" / f"step-{step}" / f"{name}.safetensors") for run in (first, second))
        assert {key: tensor.numpy().tobytes() for key, tensor in ours.items()} == {
            key: tensor.numpy().tobytes() for key, tensor in theirs.items()
        }, name
    assert timeless(first.folder / "metrics.jsonl") == timeless(second.folder / "metrics.jsonl")
    weights = [load_file(run.final / "model.safetensors") for run in (first, second)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_run_writes_everything_that_is_needed_to_understand_it(tmp_path):
    settings = settings_for(tmp_path, data__test=str(write_rows(tmp_path / "test.jsonl", rows(5, seed=9))))
    result = train(settings, progress=SilentProgress())
    names = {path.name for path in result.folder.iterdir()}
    assert {"recipe.yaml", "resolved.yaml", "command.txt", "env.json", "data.json", "metrics.jsonl", "log.txt"} <= names
    assert {"checkpoints", "final", "loss.png", "result.json"} <= names
    assert (result.stopped, result.step, result.total_steps, result.exit_code) == ("finished", 12, 12, 0)
    assert load_settings(str(result.folder / "resolved.yaml")) == settings
    data = json.loads((result.folder / "data.json").read_text())
    assert data["train"]["report"]["rows"] == 22
    assert set(data) == {"train", "validation", "test"}
    assert [record["step"] for record in result.history] == [6, 12]
    assert result.majority == max(data["validation"]["report"]["label_counts"].values()) / 9
    assert set(result.test) == {"accuracy", "f1", "mcc", "loss"}


def test_final_loads_in_transformers_and_has_the_best_weights(tmp_path):
    from transformers import AutoModelForSequenceClassification

    result = train(settings_for(tmp_path), progress=SilentProgress())
    best = result.folder / "checkpoints" / f"step-{result.best_step}" / "model.safetensors"
    ours = load_file(best)["head.output.weight"]
    model, report = AutoModelForSequenceClassification.from_pretrained(result.final, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(model.classifier.weight, ours)
    assert model.config.id2label == {0: "false", 1: "true"}


def test_without_keeping_the_best_final_has_the_last_weights(tmp_path):
    result = train(settings_for(tmp_path, checkpoint__keep_best=False), progress=SilentProgress())
    last = load_file(result.folder / "checkpoints" / "step-12" / "model.safetensors")
    assert torch.equal(load_file(result.final / "model.safetensors")["classifier.weight"], last["head.output.weight"])


def test_a_run_directory_is_never_overwritten(tmp_path):
    settings = settings_for(tmp_path, train__max_steps=1)
    assert [train(settings, progress=SilentProgress()).folder.name for _ in range(2)] == ["tiny-001", "tiny-002"]
    assert train(settings_for(tmp_path, output__name="mine", train__max_steps=1)).folder.name == "mine-001"


def test_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    first, second = (train(settings_for(tmp_path), progress=SilentProgress()) for _ in range(2))
    assert_same_end(first, second, 12)
    other = train(settings_for(tmp_path, train__seed=8), progress=SilentProgress())
    assert timeless(other.folder / "metrics.jsonl") != timeless(first.folder / "metrics.jsonl")


@pytest.mark.parametrize("stops", [(1,), (5, 7), (6, 12), (2, 3, 4, 9)])
def test_stopped_and_resumed_run_is_bit_for_bit_one_that_never_stopped(tmp_path, stops):
    settings = settings_for(tmp_path, train__micro_batch_size=3)
    whole = train(settings, progress=SilentProgress())
    result = train(settings, progress=StopAt(stops[0]))
    for stop, following in zip(stops, (*stops[1:], None), strict=True):
        assert (result.stopped, result.step, result.final, result.exit_code) == ("preempted", stop, None, 75)
        assert result.resume_command == f"modelzoo resume {result.folder}"
        result = resume(result.folder, progress=StopAt(following))
    assert result.stopped == "finished"
    assert result.history == whole.history
    assert_same_end(whole, result, 12)


def test_stop_in_the_middle_of_an_evaluation_leaves_it_for_the_resumed_run(tmp_path):
    settings = settings_for(tmp_path)
    stopped = train(settings, progress=StopAt(6))
    assert stopped.history == ()
    assert find_latest(stopped.folder / "checkpoints").manifest.step == 6
    assert [record["step"] for record in resume(stopped.folder, progress=SilentProgress()).history] == [6, 12]


def test_run_whose_process_vanished_resumes_from_its_last_checkpoint(tmp_path, monkeypatch):
    class Vanished(BaseException):
        pass

    settings = settings_for(tmp_path)
    whole = train(settings, progress=SilentProgress())
    for step in (3, 8):
        with monkeypatch.context() as patched:
            take_step = Loop._take_step

            def vanish(loop, batch, step=step, take_step=take_step):
                take_step(loop, batch)
                if loop.state.step == step:
                    raise Vanished

            patched.setattr(Loop, "_take_step", vanish)
            with pytest.raises(Vanished):
                train(settings, progress=SilentProgress())
        folder = max((tmp_path / "runs").iterdir())
        assert_same_end(whole, resume(folder, progress=SilentProgress()), 12)


def test_resume_falls_back_from_a_damaged_checkpoint_and_says_so(tmp_path):
    settings = settings_for(tmp_path)
    whole = train(settings, progress=SilentProgress())
    result = train(settings, progress=StopAt(10))
    damaged = result.folder / "checkpoints" / "step-10" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    resumed = resume(result.folder, progress=SilentProgress())
    assert_same_end(whole, resumed, 12)
    assert_same_end(whole, resumed, 10)
    assert "checkpoint step-10 skipped: " in (result.folder / "log.txt").read_text()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, caplog):
    with caplog.at_level("INFO", "modelzoo"):
        result = train(settings_for(tmp_path), progress=None or StopAt(4, number=signal.SIGINT))
    assert (result.stopped, result.exit_code) == ("interrupted", 130)
    assert find_latest(result.folder / "checkpoints").manifest.step == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_ctrl_c_stops_at_once(tmp_path):
    class Twice(SilentProgress):
        def step(self, report):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(settings_for(tmp_path), progress=Twice())


def test_finished_run_is_left_alone(tmp_path):
    result = train(settings_for(tmp_path), progress=SilentProgress())
    before = sorted((path, path.stat().st_mtime_ns) for path in result.final.iterdir())
    assert resume(result.folder, progress=SilentProgress()) == result
    assert sorted((path, path.stat().st_mtime_ns) for path in result.final.iterdir()) == before


def test_resume_with_other_settings_is_refused_showing_both(tmp_path):
    result = train(settings_for(tmp_path), progress=StopAt(4))
    path = result.folder / "resolved.yaml"
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 8").replace("seed: 7", "seed: 9"))
    with pytest.raises(CheckpointError) as raised:
        resume(result.folder, progress=SilentProgress())
    assert "train.batch_size: the checkpoint has 4, the run now has 8" in str(raised.value)
    assert "train.seed: the checkpoint has 7, the run now has 9" in str(raised.value)


def test_resume_with_other_data_is_refused_showing_both(tmp_path):
    result = train(settings_for(tmp_path), progress=StopAt(4))
    fingerprint = find_latest(result.folder / "checkpoints").manifest.data_fingerprint
    write_rows(tmp_path / "train.jsonl", rows(22, seed=5))
    with pytest.raises(CheckpointError, match=f"data: the checkpoint has fingerprint {fingerprint[:16]}, the files now have "):
        resume(result.folder, progress=SilentProgress())
    assert "ERROR" not in (result.folder / "log.txt").read_text()
    assert summarize(read_run(result.folder)).state == "stopped"


def test_resume_may_log_and_keep_differently(tmp_path):
    result = train(settings_for(tmp_path), progress=StopAt(4))
    path = result.folder / "resolved.yaml"
    path.write_text(path.read_text().replace("keep_last: 20", "keep_last: 3").replace("log_every_s: 60.0", "log_every_s: 5.0"))
    assert resume(result.folder, progress=SilentProgress()).stopped == "finished"


def test_resume_of_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"expected the folder of a run, with resolved.yaml; found notes.txt"):
        resume(tmp_path)
    with pytest.raises(InputError, match="found nothing"):
        resume(tmp_path / "absent")


def test_two_processes_in_one_run_are_refused(tmp_path):
    result = train(settings_for(tmp_path), progress=StopAt(4))
    with RunDirectory(result.folder).locked(), pytest.raises(InputError, match=f"process {os.getpid()} works on this run"):
        resume(result.folder, progress=SilentProgress())
    assert resume(result.folder, progress=SilentProgress()).stopped == "finished"


def test_non_finite_loss_stops_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    take_step = Loop._take_step

    def poisoned(loop, batch):
        if loop.state.step == 7:
            loop.job.model.head.output.bias.data[0] = float("nan")
        take_step(loop, batch)

    monkeypatch.setattr(Loop, "_take_step", poisoned)
    with pytest.raises(NonFiniteError, match="step 8: loss nan"):
        train(settings_for(tmp_path), progress=SilentProgress())
    monkeypatch.undo()
    folder = tmp_path / "runs" / "tiny-001"
    found = find_latest(folder / "checkpoints")
    assert (found.manifest.step, found.skipped) == (6, ())
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(found.path / "model.safetensors").values())
    assert resume(folder, progress=SilentProgress()).stopped == "finished"


def test_nothing_is_written_for_wrong_data(tmp_path):
    settings = settings_for(tmp_path)
    write_rows(tmp_path / "train.jsonl", [{"question": "is cat", "passage": "the cat", "label": None}])
    with pytest.raises(DataError, match=r"train.jsonl: .*row 1"):
        train(settings)
    assert not (tmp_path / "runs").exists()


def test_full_disk_ends_the_run_with_the_last_checkpoint_intact(tmp_path, monkeypatch):
    import shutil

    take_step = Loop._take_step

    def fill(loop, batch):
        take_step(loop, batch)
        if loop.state.step == 6:
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 0))

    monkeypatch.setattr(Loop, "_take_step", fill)
    with pytest.raises(SaveError, match=r"save of step 6 needs .* MiB, 0 B free at .*checkpoints"):
        train(settings_for(tmp_path), progress=SilentProgress())
    folder = tmp_path / "runs" / "tiny-001"
    assert find_latest(folder / "checkpoints").manifest.step == 5


def test_masked_lm_sees_other_masks_in_every_epoch_and_resumes(tmp_path):
    text = write_rows(tmp_path / "text.jsonl", [{"text": row["passage"]} for row in rows(10)])
    changes = {
        "model__task": "masked_lm",
        "data__train": str(text),
        "data__validation": str(text),
        "train__batch_size": 10,
        "schedule__name": "constant",
        "optimizer__lr": 1e-9,
        "model__dropout": 0.0,
    }
    settings = settings_for(tmp_path, **changes)
    result = train(settings, progress=SilentProgress())
    losses = [record["loss"] for record in read_records(result.folder / "metrics.jsonl") if "loss" in record]
    assert abs(losses[0] - losses[1]) > 1e-3
    assert set(result.history[0]) == {"step", "epoch", "accuracy", "loss", "perplexity"}
    stopped = train(settings, progress=StopAt(1))
    assert_same_end(result, resume(stopped.folder, progress=SilentProgress()), 2)


def test_batches_by_tokens_see_every_sample_of_an_epoch_once(tmp_path):
    result = train(
        settings_for(tmp_path, train__batch_size=None, train__batch_tokens=60, train__epochs=1.0), progress=SilentProgress()
    )
    records = [record for record in read_records(result.folder / "metrics.jsonl") if "loss" in record]
    assert records[-1]["samples"] == 22
    assert records[-1]["step"] == result.total_steps
    tokens = [record["tokens"] for record in records]
    assert all(after - before <= 60 for before, after in zip([0, *tokens], tokens, strict=False))


def test_labels_of_the_checkpoint_are_kept_where_the_data_use_them(tmp_path):
    first = train(settings_for(tmp_path, train__max_steps=1), progress=SilentProgress())
    second = train(settings_for(tmp_path, model__name=str(first.final), train__max_steps=1), progress=SilentProgress())
    config = json.loads((second.final / "config.json").read_text())
    assert config["id2label"] == {"0": "false", "1": "true"}
    named = train(settings_for(tmp_path, data__label_names=["true", "false"], train__max_steps=1), progress=SilentProgress())
    assert json.loads((named.final / "config.json").read_text())["id2label"] == {"0": "true", "1": "false"}
