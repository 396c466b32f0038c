"""Batches of language models: loss and gradients are transformers', and those of each sample alone; padding costs nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_language_runs import chat_rows, completion_rows, gpt2_folder, pair_rows, sentences, t5_folder
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from modelzoo.data import TokenizedDataset, build_dataset, collate, count_targets, load_tokenizer
from modelzoo.models.auto import from_pretrained
from modelzoo.models.model import Model

FORMS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "texts": ("causal_lm", [{"text": text} for text in sentences(6, longest=40)], {"max_length": 24}),
    "completions": ("causal_lm", completion_rows(6), {}),
    "chats": ("causal_lm", chat_rows(6), {"template": "plain"}),
    "pairs": ("seq2seq_lm", pair_rows(6), {}),
    "holes": ("seq2seq_lm", [{"text": text} for text in sentences(6, longest=40)], {"max_length": 20}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"causal_lm": gpt2_folder(folder / "gpt2"), "seq2seq_lm": t5_folder(folder / "t5")}


def data_of(form: str, folders: dict[str, Path]) -> tuple[Model, TokenizedDataset]:
    task, rows, options = FORMS[form]
    tokenizer = load_tokenizer(folders[task])
    data = build_dataset(rows, task=task, tokenizer=tokenizer, **{"max_length": 64} | options)
    return from_pretrained(folders[task], task=task, dtype="float32").train(), data


def batch_of(data: TokenizedDataset) -> dict[str, torch.Tensor]:
    return collate([data.item(index) for index in range(len(data))], data.pad_id)


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradients_are_those_of_transformers(form: str, folders: dict[str, Path], tmp_path: Path) -> None:
    model, data = data_of(form, folders)
    task = FORMS[form][0]
    reference = (AutoModelForCausalLM if task == "causal_lm" else AutoModelForSeq2SeqLM).from_pretrained(str(folders[task]))
    batch = batch_of(data)
    assert (batch["labels"] == -100).any()
    ours = model(**batch).loss
    theirs = reference(**batch).loss
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    ours.backward()
    theirs.backward()
    # saved as if they were weights, our gradients get the names that transformers has for them
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    found = load_file(model.save_pretrained(tmp_path / "gradients") / "model.safetensors")
    compared = 0
    for name, parameter in reference.named_parameters():
        if name in found:
            torch.testing.assert_close(found[name], parameter.grad, rtol=0, atol=5e-6)
            compared += 1
    assert compared == len(found)


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_a_batch_do_not_see_each_other(form: str, folders: dict[str, Path]) -> None:
    """One batch equals its samples one by one: an unpadded batch is a packed one, without contamination."""
    model, data = data_of(form, folders)
    batch = batch_of(data)
    total = count_targets(batch)
    model(**batch).loss.backward()
    together = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    losses = 0.0
    for index in range(len(data)):
        single = collate([data.item(index)], data.pad_id)
        part = model(**single).loss * (count_targets(single) / total)
        part.backward()
        losses += part.item()
    assert losses == pytest.approx(model(**batch).loss.item(), abs=2e-6)
    for ours, parameter in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=0, atol=5e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_costs_what_its_real_tokens_cost(form: str, folders: dict[str, Path]) -> None:
    model, data = data_of(form, folders)

    def flops(items: list[int]) -> int:
        with FlopCounterMode(display=False) as counter:
            model(**collate([data.item(index) for index in items], data.pad_id)).loss.backward()
        return counter.get_total_flops()

    assert len(set(data.lengths)) > 1  # so that there is padding
    assert flops(list(range(len(data)))) == sum(flops([index]) for index in range(len(data)))


@pytest.mark.parametrize("form", FORMS)
def test_targets_are_counted_as_the_loss_counts_them(form: str, folders: dict[str, Path]) -> None:
    """The step weighs a batch by its targets: a label that the loss leaves out may not count."""
    _, data = data_of(form, folders)
    batch = batch_of(data)
    labels = batch["labels"][:, 1:] if FORMS[form][0] == "causal_lm" else batch["labels"]
    assert count_targets(batch) == int((labels != -100).sum()) == data.report.num_targets
