"""Runs on token stores equal runs on their texts, on one process and on two, and go on in the middle of an epoch."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed import run_distributed
from safetensors.torch import load_file
from tiny_language_runs import language_settings, sentences, write_rows

from modelzoo.config import RunSettings
from modelzoo.data import load_tokenizer
from modelzoo.data.store import build_store
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.training import SilentProgress, resume, train


def text_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"text": text} for text in sentences(count, seed, longest=40)]


def stored(folder: Path, task: str, **changes: Any) -> tuple[RunSettings, RunSettings]:
    """Settings on texts, and the same on a store of them."""
    texts = language_settings(folder, task, text_rows, data__max_length=16, **changes)
    tokenizer = load_tokenizer(folder / "model")
    if not (folder / "store").exists():
        build_store([folder / "train.jsonl"], tokenizer, folder / "store")
    data = texts.data.model_copy(update={"train": str(folder / "store")})
    return texts, texts.model_copy(update={"data": data})


@pytest.mark.parametrize("task", ["causal_lm", "seq2seq_lm"])
def test_a_run_on_a_store_is_the_run_on_its_texts(task: str, tmp_path: Path) -> None:
    on_texts, on_store = stored(tmp_path, task)
    first, second = train(on_texts), train(on_store)
    assert second.history == first.history
    assert first.final is not None
    assert second.final is not None
    assert (second.final / "model.safetensors").read_bytes() == (first.final / "model.safetensors").read_bytes()
    assert second.step == first.step > 4


def start(folder: str, name: str) -> None:
    _, on_store = stored(
        Path(folder), "causal_lm", output__name=name, train__max_steps=7, train__micro_batch_size=2, optimizer__lr=1e-4
    )
    train(on_store, progress=SilentProgress())


def test_two_processes_read_one_store(tmp_path: Path) -> None:
    start(str(tmp_path), "one")
    run_distributed(start, 2, str(tmp_path), "two")
    alone, together = (load_file(tmp_path / "runs" / f"{name}-001" / "final" / "model.safetensors") for name in ("one", "two"))
    for name, values in alone.items():
        assert (values - together[name]).abs().max() < 1e-6, name


def test_a_run_goes_on_only_on_the_store_it_began_on(tmp_path: Path) -> None:
    _, on_store = stored(tmp_path, "causal_lm", train__max_steps=7, checkpoint__every=3)
    whole = train(on_store)
    part = train(on_store.model_copy(update={"output": on_store.output.model_copy(update={"name": "part"})}))
    for name in ("final", "checkpoints/step-7"):
        (part.folder / name).rename(tmp_path / Path(name).name)
    (part.folder / "result.json").unlink()
    (tmp_path / "store").rename(tmp_path / "its store")
    other = write_rows(tmp_path / "other.jsonl", text_rows(22, seed=5))
    build_store([other], load_tokenizer(tmp_path / "model"), tmp_path / "store")
    with pytest.raises(CheckpointError, match="data"):
        resume(part.folder)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "its store").rename(tmp_path / "store")
    again = resume(part.folder)
    assert again.final is not None
    assert whole.final is not None
    assert (again.final / "model.safetensors").read_bytes() == (whole.final / "model.safetensors").read_bytes()


def test_settings_that_a_store_cannot_serve_are_refused(tmp_path: Path) -> None:
    _, on_store = stored(tmp_path, "causal_lm", evaluation__max_new_tokens=4)
    validated = on_store.model_copy(update={"data": on_store.data.model_copy(update={"validation": str(tmp_path / "store")})})
    with pytest.raises(ConfigError, match=r"data\.validation is a token store, which holds no prompts"):
        train(validated)
