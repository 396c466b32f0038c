"""Runs that train an adapter: the base is frozen, states are small, `final/` is PEFT's folder, every layout gives the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_runs import WEIGHTS, assert_equal_in_peft, assert_equal_tensors, start, stopped_and_resumed, with_adapter
from distributed import run_distributed
from safetensors.torch import load_file
from test_runs import StopAt
from test_runs_ranks import close_enough
from test_runs_tiers import everything_on_disk, memory_of  # noqa: F401  # a fixture
from tiny_runs import Notes, settings_for

import modelzoo
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.models.adapted import write_merged, write_peft
from modelzoo.training import SilentProgress, adapting, evaluate, predict, resume, runs, train
from modelzoo.verification import verify


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_run_gives_a_folder_that_peft_loads_with_equal_scores(tmp_path: Path, method: str) -> None:
    result = train(with_adapter(tmp_path, method), progress=SilentProgress())
    final = result.folder / "final"
    assert {"adapter_config.json", "adapter_model.safetensors", "vocab.txt", "modelzoo.json"} <= {
        each.name for each in final.iterdir()
    }
    assert not (final / "model.safetensors").exists()
    ours = modelzoo.from_pretrained(final)
    assert ours.task == "classification"
    assert ours.config.label_names == ("false", "true")
    assert_equal_in_peft(final, tmp_path / "model")


def test_the_run_says_what_is_trained_counted_from_whole_tensors(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path), progress=(notes := Notes()))
    log = notes.text
    model = modelzoo.from_pretrained(result.folder / "final")
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert f"trainable {trained:,} of {total:,} parameters ({100 * trained / total:.2f} %)" in log
    assert "trained whole: pooler 272 (0.00 MiB), head 34 (0.00 MiB)" in log
    assert f"{len(load_file(result.folder / WEIGHTS))} tensors, {trained:,} values" in log


def test_states_leave_the_base_out_and_resuming_is_exact(tmp_path: Path) -> None:
    whole = train(with_adapter(tmp_path), progress=SilentProgress())
    done, saved = stopped_and_resumed(with_adapter(tmp_path))
    assert saved
    assert all(".adapter." in name or name.startswith(("head.", "pooler.")) for name in saved)
    assert_equal_tensors(done.folder / WEIGHTS, whole.folder / WEIGHTS)


def test_a_base_that_changed_since_is_refused(tmp_path: Path) -> None:
    stopped = train(with_adapter(tmp_path), progress=StopAt(7))
    torch.manual_seed(1)
    model = modelzoo.from_pretrained(tmp_path / "model", task="masked_lm")
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    model.save_pretrained(tmp_path / "model", overwrite=True)
    with pytest.raises(
        CheckpointError, match=r"base: the checkpoint has '[0-9a-f]{64}', the run now has '[0-9a-f]{64}'\n.*is frozen"
    ):
        resume(stopped.folder, progress=SilentProgress())


def test_a_run_is_evaluated_predicted_with_merged_and_written_again(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path), progress=SilentProgress())
    found = evaluate(result.folder)
    assert found["loss"] == pytest.approx(result.history[-1 if result.best_step == result.step else 0]["loss"], abs=1e-5)
    rows = [{"question": "is cat", "passage": "the cat sat"}]
    before = predict(result.folder, rows)
    merged = write_merged(result.folder / "final", tmp_path / "merged")
    assert not (merged / "adapter_config.json").exists()
    after = predict(merged, rows, columns={"text_a": "question", "text_b": "passage"})
    assert after[0]["label"] == before[0]["label"]
    assert after[0]["probability"] == pytest.approx(before[0]["probability"], abs=1e-6)
    again = write_peft(result.folder / "final", tmp_path / "peft")
    assert_equal_tensors(again / "adapter_model.safetensors", result.folder / WEIGHTS)
    assert json.loads((again / "adapter_config.json").read_text()) == json.loads(
        (result.folder / "final/adapter_config.json").read_text()
    )


def test_an_adapter_alone_is_not_verified(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path, train__max_steps=2), progress=SilentProgress())
    with pytest.raises(ConfigError, match=r"holds an adapter, and transformers compares whole models; write it with its base"):
        verify(result.folder / "final")
    assert verify(write_merged(result.folder / "final", tmp_path / "merged")).is_equal


def test_a_frozen_base_is_kept_in_the_precision_that_it_computes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, dict[str, torch.dtype]] = {}

    def run(name: str) -> Path:
        load = adapting.load_for_run

        def kept(*args: Any) -> Any:
            model = load(*args)
            loaded[name] = {key: parameter.dtype for key, parameter in model.named_parameters() if not parameter.requires_grad}
            assert all(parameter.dtype == torch.float32 for parameter in model.parameters() if parameter.requires_grad)
            return model

        monkeypatch.setattr(runs, "load_for_run", kept)
        found = train(with_adapter(tmp_path, parallel__precision="bfloat16", train__max_steps=3), progress=SilentProgress()).folder
        monkeypatch.setattr(runs, "load_for_run", load)
        return found

    half = run("half")
    monkeypatch.setattr(adapting, "_store_in", lambda *_: None)
    whole = run("whole")
    assert set(loaded["half"].values()) == {torch.bfloat16}
    assert set(loaded["whole"].values()) == {torch.float32}
    assert_equal_tensors(half / WEIGHTS, whole / WEIGHTS)


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path), progress=SilentProgress())
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(
        CheckpointError, match=r"the base of this adapter is missing; put it back, or change base_model_name_or_path"
    ):
        modelzoo.from_pretrained(result.folder / "final")


def test_a_new_part_is_not_left_as_it_was_drawn(tmp_path: Path) -> None:
    settings = with_adapter(tmp_path, adapter__train_also=[])
    with pytest.raises(ConfigError, match=r"pooler.dense.weight, pooler.dense.bias are new.*add adapter.train_also=\[pooler\]"):
        train(settings, progress=SilentProgress())


def test_biases_alone_give_a_whole_model(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path, "bias"), progress=SilentProgress())
    final, base = load_file(result.folder / "final/model.safetensors"), load_file(tmp_path / "model/model.safetensors")
    changed = {name for name in final if name in base and not torch.equal(final[name], base[name])}
    assert changed
    assert all(name.endswith("bias") for name in changed)


@pytest.mark.usefixtures("everything_on_disk")
def test_a_base_on_disk_gives_the_same_adapter(tmp_path: Path) -> None:
    plain = train(with_adapter(tmp_path), progress=SilentProgress())
    tiered = train(with_adapter(tmp_path, **memory_of(tmp_path)), progress=SilentProgress())
    assert_equal_tensors(tiered.folder / WEIGHTS, plain.folder / WEIGHTS)


@pytest.mark.parametrize("recompute", ["blocks", "selective"])
def test_blocks_that_are_computed_twice_train_the_same_adapter(tmp_path: Path, recompute: str) -> None:
    plain = train(with_adapter(tmp_path), progress=SilentProgress())
    twice = train(with_adapter(tmp_path, parallel__recompute=recompute), progress=SilentProgress())
    assert_equal_tensors(twice.folder / WEIGHTS, plain.folder / WEIGHTS)


@pytest.mark.parametrize(
    ("method", "layout"),
    [
        ("lora", {"parallel__zero": 3}),
        ("lora", {"parallel__tensor": 2}),
        ("dora", {"parallel__tensor": 2, "parallel__recompute": "blocks"}),
    ],
)
def test_two_ranks_train_the_adapter_of_one_process(tmp_path: Path, method: str, layout: dict[str, Any]) -> None:
    settings_for(tmp_path)
    start(str(tmp_path), "one", method, {})
    run_distributed(start, 2, str(tmp_path), "two", method, layout)
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    close_enough(two / "metrics.jsonl", one / "metrics.jsonl")
    assert_equal_tensors(two / WEIGHTS, one / WEIGHTS, atol=1e-6)
    assert (tmp_path / "two.txt").read_text() == (tmp_path / "one.txt").read_text()
