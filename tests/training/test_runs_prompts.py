"""Runs that train virtual tokens: saved without the base, resumed exactly, the same over ranks, and written with."""

from pathlib import Path
from typing import Any

import pytest
from adapter_runs import WEIGHTS, assert_equal_in_peft, assert_equal_tensors, start, stopped_and_resumed, with_adapter
from distributed import run_distributed
from safetensors.torch import load_file
from test_runs_ranks import close_enough
from test_runs_tiers import everything_on_disk, memory_of  # noqa: F401  # a fixture
from tiny_language_runs import language_settings
from tiny_runs import Notes, settings_for

import modelzoo
from modelzoo.data import load_tokenizer
from modelzoo.errors import ConfigError
from modelzoo.generation import generate
from modelzoo.models.adapted import write_merged, write_peft
from modelzoo.plan import plan_training
from modelzoo.training import SilentProgress, evaluate, predict, train

TOKENS = {"adapter__num_virtual_tokens": 5}


def test_a_run_gives_a_folder_that_peft_loads_with_equal_scores(tmp_path: Path) -> None:
    result = train(with_adapter(tmp_path, "prompt", **TOKENS), progress=(notes := Notes()))
    assert "trainable 386 of " in notes.text  # 5 x 16, the pooler's 272 and the head's 34
    assert "trained whole: pooler 272 (0.00 MiB), head 34 (0.00 MiB)" in notes.text
    final = result.folder / "final"
    assert set(load_file(final / "adapter_model.safetensors")) == {
        "prompt_embeddings",
        *(f"base_model.{name}" for name in ("classifier.weight", "classifier.bias")),
        *(f"base_model.bert.pooler.dense.{name}" for name in ("weight", "bias")),
    }
    assert_equal_in_peft(final, tmp_path / "model")
    found = evaluate(result.folder)
    assert found["loss"] == pytest.approx(result.history[-1 if result.best_step == result.step else 0]["loss"], abs=1e-5)
    assert predict(result.folder, [{"question": "is cat", "passage": "the cat sat"}])[0]["label"] in ("true", "false")
    again = write_peft(final, tmp_path / "peft")
    assert_equal_tensors(again / "adapter_model.safetensors", result.folder / WEIGHTS)
    with pytest.raises(ConfigError, match=r"virtual tokens stand before every text.*keep the adapter beside its base"):
        write_merged(final, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_states_leave_the_base_out_and_resuming_is_exact(tmp_path: Path) -> None:
    whole = train(with_adapter(tmp_path, "prompt", **TOKENS), progress=SilentProgress())
    done, saved = stopped_and_resumed(with_adapter(tmp_path, "prompt", **TOKENS))
    assert saved == {"embeddings.token.adapter.vectors", *(name for name in saved if name.startswith(("head.", "pooler.")))}
    assert_equal_tensors(done.folder / WEIGHTS, whole.folder / WEIGHTS)


@pytest.mark.usefixtures("everything_on_disk")
def test_a_base_on_disk_and_blocks_computed_twice_give_the_same(tmp_path: Path) -> None:
    plain = train(with_adapter(tmp_path, "prompt", **TOKENS), progress=SilentProgress())
    for changes in (memory_of(tmp_path), {"parallel__recompute": "blocks"}):
        other = train(with_adapter(tmp_path, "prompt", **TOKENS, **changes), progress=SilentProgress())
        assert_equal_tensors(other.folder / WEIGHTS, plain.folder / WEIGHTS)


@pytest.mark.parametrize("layout", [{"parallel__zero": 3}, {"parallel__tensor": 2}])
def test_two_ranks_train_the_prompt_of_one_process(tmp_path: Path, layout: dict[str, Any]) -> None:
    settings_for(tmp_path)
    start(str(tmp_path), "one", "prompt", {})
    run_distributed(start, 2, str(tmp_path), "two", "prompt", layout)
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    close_enough(two / "metrics.jsonl", one / "metrics.jsonl")
    assert_equal_tensors(two / WEIGHTS, one / WEIGHTS, atol=1e-6)


def test_texts_leave_room_for_the_prompt_and_the_plan_counts_it(tmp_path: Path) -> None:
    settings = with_adapter(tmp_path, "prompt", data__max_length=64, train__max_steps=2, **TOKENS)
    train(settings, progress=(notes := Notes()))
    assert "data.max_length=64 is more than the model's 59 tokens, which are used" in notes.text
    with pytest.raises(ConfigError, match=r"adapter.num_virtual_tokens=64 leaves no room in 64 positions"):
        train(with_adapter(tmp_path, "prompt", adapter__num_virtual_tokens=64), progress=SilentProgress())
    short = {"data__max_length": 32, "adapter__train_also": ["pooler"]}
    more, less = (plan_training(with_adapter(tmp_path, method, **short, **TOKENS)).plan for method in ("prompt", "bias"))
    assert more.work.lengths[0] == less.work.lengths[0] + 5


@pytest.mark.parametrize("task", ["causal_lm", "seq2seq_lm"])
def test_language_models_learn_a_prompt_and_write_behind_it(tmp_path: Path, task: str) -> None:
    settings = language_settings(
        tmp_path, task, adapter__method="prompt", adapter__num_virtual_tokens=6, evaluation__max_new_tokens=3, train__epochs=6.0
    )
    result = train(settings, progress=SilentProgress())
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert load_file(result.folder / WEIGHTS)["prompt_embeddings"].shape == (6, 16)
    rows = [{"prompt": "the cat is"} if task == "causal_lm" else {"source": "the cat"}]
    model = modelzoo.from_pretrained(result.folder / "final")
    written = generate(model, "the cat is", tokenizer=load_tokenizer(result.folder / "final"), max_new_tokens=3)
    assert predict(result.folder, rows * 2)
    assert len(written.new_ids[0]) <= 3
