"""Runs of language models: exact metrics, resumed bit for bit, the same on two ranks; what they write is compared and predicted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import run_distributed
from safetensors.torch import load_file
from test_runs import StopAt, assert_same_end
from tiny_language_runs import chat_rows, language_settings, sentences, write_rows
from transformers import AutoTokenizer

from modelzoo.cli import main
from modelzoo.data import load_tokenizer
from modelzoo.errors import ConfigError, DataError
from modelzoo.generation import generate
from modelzoo.generation.chat_prompts import chat_prompts
from modelzoo.models.auto import from_pretrained
from modelzoo.report import read_records
from modelzoo.training import SilentProgress, evaluate, predict, resume, train

TASKS = ["causal_lm", "seq2seq_lm"]


def texts_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"text": text} for text in sentences(count, seed, longest=30)]


@pytest.mark.parametrize("task", TASKS)
def test_metrics_are_those_of_all_tokens_at_once(task: str, tmp_path: Path) -> None:
    result = train(language_settings(tmp_path, task, train__epochs=0.2, evaluation__batch_tokens=20), progress=SilentProgress())
    values = evaluate(result.folder, batch_tokens=33)
    model, tokenizer = from_pretrained(result.final, task=task), load_tokenizer(result.final)
    losses, right = [], []
    for line in (tmp_path / "validation.jsonl").read_text().splitlines():
        row = json.loads(line)
        if task == "causal_lm":
            prompt = tokenizer.encode([row["prompt"]])[0].input_ids
            ids = [*tokenizer.encode([row["prompt"] + row["completion"]])[0].input_ids, tokenizer.eos_id]
            logits = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            target = torch.tensor(ids[len(prompt) :])
        else:
            source, labels = (tokenizer.encode([row[name]])[0].input_ids for name in ("source", "target"))
            logits = model(torch.tensor([source]), labels=torch.tensor([labels])).logits[0]
            target = torch.tensor(labels)
        losses += torch.nn.functional.cross_entropy(logits, target, reduction="none").tolist()
        right += (logits.argmax(-1) == target).tolist()
    mean = sum(losses) / len(losses)
    assert values["loss"] == pytest.approx(mean, abs=1e-5)
    assert values["perplexity"] == pytest.approx(torch.tensor(mean).exp().item(), rel=1e-5)
    assert values["accuracy"] == sum(right) / len(right)
    assert result.history[-1]["loss"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("task", "make"), [("causal_lm", None), ("seq2seq_lm", texts_of)])
def test_stopped_and_resumed_run_is_bit_for_bit_one_that_never_stopped(task: str, make: Any, tmp_path: Path) -> None:
    settings = language_settings(tmp_path, task, make, train__batch_size=None, train__batch_tokens=60, data__max_length=24)
    whole = train(settings, progress=SilentProgress())
    result = train(settings, progress=StopAt(3))
    assert result.stopped == "preempted"
    assert_same_end(whole, resume(result.folder, progress=SilentProgress()), whole.step)


def start(folder: str, task: str, name: str) -> None:
    changes = {"optimizer__lr": 1e-4, "train__max_steps": 2, "evaluation__max_new_tokens": 3, "evaluation__every": None}
    train(language_settings(Path(folder), task, output__name=name, **changes), progress=SilentProgress())


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_train_write_and_evaluate_as_one_process_does(task: str, tmp_path: Path) -> None:
    language_settings(tmp_path, task)
    start(str(tmp_path), task, "one")
    run_distributed(start, 2, str(tmp_path), task, "two", timeout_s=300)
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    for ours, theirs in zip(read_records(two / "metrics.jsonl"), read_records(one / "metrics.jsonl"), strict=True):
        for key in set(theirs) - {"seconds"}:
            assert ours[key] == pytest.approx(theirs[key], abs=2e-6, rel=1e-5), key
    assert {"exact_match", "f1"} <= set([*read_records(one / "metrics.jsonl")][-1]["evaluation"])
    ours, theirs = (load_file(run / "final" / "model.safetensors") for run in (two, one))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_has_learned_writes_its_targets(task: str, tmp_path: Path) -> None:
    """It learns its training rows by heart, so all of them are written exactly, each once."""
    changes = {"train__epochs": 150.0, "optimizer__lr": 2e-2, "evaluation__max_new_tokens": 4, "evaluation__every": None}
    settings = language_settings(tmp_path, task, **changes)
    write_rows(tmp_path / "train.jsonl", rows := [json.loads(line) for line in (tmp_path / "train.jsonl").open()][:4])
    write_rows(tmp_path / "validation.jsonl", rows)
    result = train(settings, progress=SilentProgress())
    assert result.history[-1]["exact_match"] == result.history[-1]["f1"] == 1.0
    target = "completion" if task == "causal_lm" else "target"
    asked = [{name: value for name, value in row.items() if name != target} for row in rows]
    assert [line["text"] for line in predict(result.folder, asked, batch_tokens=24)] == [row[target] for row in rows]
    assert evaluate(result.folder)["exact_match"] == 1.0


def test_an_adapter_of_chats_is_asked_in_the_template_that_it_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = {"adapter__method": "lora", "adapter__r": 2}
    settings = language_settings(tmp_path, "causal_lm", chat_rows, data__template="plain", train__epochs=0.2, **adapter)
    result = train(settings, progress=SilentProgress())
    assert result.final is not None
    assert from_pretrained(result.final).source_folder == result.final
    capsys.readouterr()
    assert main(["generate", str(result.folder), "--text", "one", "max_new_tokens=2", "--json"]) == 0
    assert capsys.readouterr().out


def test_the_result_of_a_chat_carries_its_template_and_its_end(tmp_path: Path) -> None:
    settings = language_settings(tmp_path, "causal_lm", chat_rows, data__template="plain", train__epochs=0.2)
    result = train(settings, progress=SilentProgress())
    tokenizer = load_tokenizer(result.final)
    messages = [{"role": "user", "content": "the cat"}]
    served = AutoTokenizer.from_pretrained(str(result.final)).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert tokenizer.decode(served) == "User: the cat\n\nAssistant:"
    assert chat_prompts(tokenizer, ["the cat"]) == ([served], (tokenizer.eos_id,))
    assert json.loads((result.final / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_id
    expected = generate(from_pretrained(result.final), [served], tokenizer=tokenizer, max_new_tokens=3).texts
    for row in ({"text": "the cat"}, {"messages": messages}, {"instruction": "the cat"}):
        assert [line["text"] for line in predict(result.folder, [row], max_new_tokens=3)] == expected
    assert json.loads((result.folder / "data.json").read_text())["train"]["form"] == "chat"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"evaluation__metric": "f1"},
            ValueError,
            "evaluation.metric=f1 compares texts that the model writes; add evaluation.max_new",
        ),
        ({"data__max_target_length": 8}, ValueError, "data.max_target_length=8 has no effect with model.task=causal_lm"),
        (
            {"evaluation__max_new_tokens": 60},
            DataError,
            r"validation.jsonl: row \d: a prompt of \d+ tokens and max_new_tokens=60 do not",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(language_settings(tmp_path, "causal_lm", **changes), progress=SilentProgress())


def test_texts_have_no_answers_to_compare_with(tmp_path: Path) -> None:
    settings = language_settings(tmp_path, "causal_lm", texts_of, evaluation__max_new_tokens=4)
    with pytest.raises(DataError, match=r"validation.jsonl: plain texts have no answers to compare with"):
        train(settings, progress=SilentProgress())


def test_a_classifier_writes_nothing(tmp_path: Path) -> None:
    from tiny_runs import settings_for

    result = train(settings_for(tmp_path, train__epochs=0.2), progress=SilentProgress())
    with pytest.raises(ConfigError, match="max_new_tokens=3: this model is for classification and writes no text"):
        predict(result.folder, [{"question": "a", "passage": "b"}], max_new_tokens=3)
