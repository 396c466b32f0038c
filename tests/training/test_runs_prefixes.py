"""Runs that train a prefix: resumed exactly, the same from disk, computed twice and over ranks, and written behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_runs import WEIGHTS, assert_equal_tensors, stopped_and_resumed
from distributed import run_distributed
from safetensors.torch import load_file
from test_runs_ranks import close_enough
from test_runs_tiers import everything_on_disk, memory_of  # noqa: F401  # a fixture
from tiny_language_runs import language_settings
from tiny_runs import Notes

import modelzoo
from modelzoo.config import RunSettings
from modelzoo.data import load_tokenizer
from modelzoo.errors import ConfigError
from modelzoo.generation import generate
from modelzoo.models.adapted import write_merged, write_peft
from modelzoo.plan import plan_training
from modelzoo.training import SilentProgress, predict, train

PREFIX = {"adapter__method": "prefix", "adapter__num_virtual_tokens": 4, "optimizer__lr": 1e-2}


def with_prefix(folder: Path, task: str = "causal_lm", **changes: Any) -> RunSettings:
    return language_settings(folder, task, **{**PREFIX, "train__max_steps": 8, **changes})


def start(folder: str, name: str, changes: dict[str, Any]) -> None:
    train(with_prefix(Path(folder), output__name=name, train__micro_batch_size=2, **changes), progress=SilentProgress())


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("task", ["causal_lm", "seq2seq_lm"])
def test_language_models_learn_a_prefix_and_write_behind_it(tmp_path: Path, task: str, projection: bool) -> None:
    options = {"evaluation__max_new_tokens": 3, "train__epochs": 6.0, "train__max_steps": None}
    result = train(with_prefix(tmp_path, task, adapter__prefix_projection=projection, **options), progress=(notes := Notes()))
    width, blocks = 16, 2
    maps = width * width + width + 2 * blocks * width * (width + 1)
    count = 4 * width + maps if projection else 4 * 2 * blocks * width
    assert f"trainable {count:,} of " in notes.text
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    pairs = 2 * blocks if task == "seq2seq_lm" else blocks
    assert load_file(result.folder / WEIGHTS)["prompt_embeddings"].shape == (4, 2 * pairs * width)
    rows = [{"prompt": "the cat is"} if task == "causal_lm" else {"source": "the cat"}]
    final = result.folder / "final"
    written = generate(modelzoo.from_pretrained(final), "the cat is", tokenizer=load_tokenizer(final), max_new_tokens=3)
    assert predict(result.folder, rows * 2)
    assert len(written.new_ids[0]) <= 3
    again = write_peft(final, tmp_path / "peft")
    assert_equal_tensors(again / "adapter_model.safetensors", result.folder / WEIGHTS)
    with pytest.raises(
        ConfigError, match=r"keys and values stand before those of every attention.*keep the adapter beside its base"
    ):
        write_merged(final, tmp_path / "merged")


@pytest.mark.usefixtures("everything_on_disk")
def test_every_way_gives_the_same_values_and_resuming_is_exact(tmp_path: Path) -> None:
    options = {"adapter__prefix_projection": True}
    whole = load_file(train(with_prefix(tmp_path, **options), progress=SilentProgress()).folder / WEIGHTS)
    resumed, saved = stopped_and_resumed(with_prefix(tmp_path, **options), step=5)
    assert saved == {f"decoder.adapter.{name}" for name in ("vectors", "inner", "inner_bias", "outer", "outer_bias")}
    others = [resumed]
    for changes in (memory_of(tmp_path), {"parallel__recompute": "blocks"}):
        others.append(train(with_prefix(tmp_path, **options, **changes), progress=SilentProgress()))
    for other in others:
        assert torch.equal(load_file(other.folder / WEIGHTS)["prompt_embeddings"], whole["prompt_embeddings"])


@pytest.mark.parametrize("layout", [{"parallel__zero": 3}, {"parallel__tensor": 2}])
def test_two_ranks_train_the_prefix_of_one_process(tmp_path: Path, layout: dict[str, Any]) -> None:
    with_prefix(tmp_path)
    start(str(tmp_path), "one", {})
    run_distributed(start, 2, str(tmp_path), "two", layout)
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    close_enough(two / "metrics.jsonl", one / "metrics.jsonl")
    ours, theirs = load_file(two / WEIGHTS), load_file(one / WEIGHTS)
    torch.testing.assert_close(ours["prompt_embeddings"], theirs["prompt_embeddings"], rtol=0, atol=1e-5)


def test_texts_leave_room_for_the_prefix_and_rows_are_no_longer(tmp_path: Path) -> None:
    train(with_prefix(tmp_path, data__max_length=64, train__max_steps=2), progress=(notes := Notes()))
    assert "data.max_length=64 is more than the model's 60 tokens, which are used" in notes.text
    settings = with_prefix(tmp_path, data__max_length=64)
    found, plain = (plan_training(each).plan for each in (settings, language_settings(tmp_path, "causal_lm", data__max_length=60)))
    assert (found.work.lengths, found.work.lead) == (plain.work.lengths, 4)
