import logging
import math

import pytest
import torch
from distributed import run_distributed
from tiny_runs import model_folder, rows
from torch import nn

from modelzoo.data import build_dataset, load_tokenizer
from modelzoo.errors import NonFiniteError
from modelzoo.models.bert import Bert
from modelzoo.runtime import connect, full_state, model_tensors, prepare
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.step import build_micro_batches, take_step


def token_rows(count):
    """Rows with unequal numbers of targets, between one and twelve."""
    return [
        {"tokens": row["passage"].split(), "tags": ["A" if word in ("cat", "dog") else "B" for word in row["passage"].split()]}
        for row in rows(count, longest=12)
    ]


def make(folder, task="token_classification", dropout=0.0):
    """A model without dropout (so that cuts can be compared), its data set, and an optimizer."""
    if not folder.exists():
        model_folder(folder)
    torch.manual_seed(3)
    model = Bert.from_pretrained(folder, task=task, num_labels=2, dropout=dropout).train()
    some = token_rows(11) if task == "token_classification" else rows(11)
    dataset = build_dataset(some, task=task, tokenizer=load_tokenizer(folder), max_length=32)
    return model, dataset


def gradients(model, dataset, indices, world, max_rows):
    """The gradients of one step, taken from an optimizer that does not move."""
    batches = build_micro_batches(dataset, indices, epoch=0, world=world, max_rows=max_rows)
    found = {}

    class Catch(torch.optim.SGD):
        def step(self):
            found.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    optimizer = Catch(model.parameters(), lr=0.0)
    num_targets = sum(batch.num_targets for batch in batches)
    result = take_step(model, optimizer, batches, num_targets=num_targets, clip_norm=None, world=world, step=1)
    return found, result, len(batches)


@pytest.mark.parametrize(("max_rows", "count"), [(6, 2), (5, 3), (3, 4), (1, 11)])
def test_accumulation_is_one_big_batch_for_unequal_targets_and_a_short_last_window(tmp_path, max_rows, count):
    model, dataset = make(tmp_path / "model")
    with connect(device="cpu") as world:
        whole, expected, _ = gradients(model, dataset, range(11), world, None)
        parts, result, num_batches = gradients(model, dataset, range(11), world, max_rows)
    assert num_batches == count
    assert result.loss == pytest.approx(expected.loss, rel=1e-6)
    assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-6)
    difference = math.sqrt(sum(float((parts[name] - whole[name]).square().sum()) for name in whole))
    assert difference / expected.grad_norm <= 1e-6


def test_loss_of_a_step_is_the_mean_over_all_targets(tmp_path):
    model, dataset = make(tmp_path / "model")
    with connect(device="cpu") as world:
        _, result, _ = gradients(model, dataset, range(11), world, 2)
    losses = []
    for index in range(11):
        item = {name: torch.tensor([value]) for name, value in dataset.item(index).items()}
        labels = item.pop("labels")
        logits = model(**item).logits
        losses += torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="none", ignore_index=-100)[labels[0] != -100]
    assert result.loss == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-6)


def sharded_steps(folder, count) -> None:
    """`count` samples on these ranks give the parameters of one process, also where a rank has no sample."""
    from pathlib import Path

    with connect(device="cpu") as world:
        model, dataset = make(Path(folder))
        alone, _ = make(Path(folder))
        prepare(model, world)
        one = world.__class__(0, 1, 0, world.device, 1)
        losses = []
        for each, place in ((model, world), (alone, one)):
            optimizer = build_optimizer(each, lr=1e-2)
            for step in range(3):
                indices = [(step * count + index) % 11 for index in range(count)]
                batches = build_micro_batches(dataset, indices, epoch=0, world=place, max_rows=2)
                num_targets = int(place.sum([sum(batch.num_targets for batch in batches)])[0])
                result = take_step(each, optimizer, batches, num_targets=num_targets, clip_norm=0.5, world=place, step=step + 1)
                losses.append((result.loss, result.grad_norm))
        for ours, theirs in zip(losses[:3], losses[3:], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)
        expected = model_tensors(alone)
        for name, tensor in full_state(model_tensors(model)):
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("world_size", "count"), [(2, 7), (2, 1), (3, 4)])
def test_steps_on_ranks_equal_one_process_also_without_a_sample_for_each(tmp_path, world_size, count):
    model_folder(tmp_path / "model", dropout=0.0)
    run_distributed(sharded_steps, world_size, str(tmp_path / "model"), count)


def test_every_rank_has_as_many_micro_batches(tmp_path):
    _, dataset = make(tmp_path / "model")
    with connect(device="cpu") as world:
        ranks = [world.__class__(rank, 3, rank, world.device, 1) for rank in range(3)]
    cuts = [build_micro_batches(dataset, [4, 5, 6, 7], epoch=0, world=rank, max_rows=1) for rank in ranks]
    assert [len(cut) for cut in cuts] == [2, 2, 2]
    assert sorted(index for cut in cuts for batch in cut for index in batch.indices) == [4, 5, 6, 7]
    stand_ins = [batch for cut in cuts for batch in cut if not batch.indices]
    assert [(batch.num_targets, batch.num_tokens) for batch in stand_ins] == [(0, 0), (0, 0)]


def test_micro_batch_without_a_target_adds_nothing(tmp_path):
    model, dataset = make(tmp_path / "model")
    items = [dataset.item(index) for index in range(11)]
    items[3] = {**items[3], "labels": [-100] * len(items[3]["labels"])}
    dataset.item = lambda index, epoch=0: items[index]
    with connect(device="cpu") as world:
        found, result, _ = gradients(model, dataset, [3, 4], world, 1)
        expected, alone, _ = gradients(model, dataset, [4], world, None)
    assert result.loss == alone.loss
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_step_without_any_target_is_refused_naming_its_samples(tmp_path, monkeypatch):
    from tiny_runs import settings_for

    from modelzoo.errors import DataError
    from modelzoo.training import SilentProgress, step, train

    monkeypatch.setattr(step, "count_targets", lambda batch: 0)
    with pytest.raises(DataError, match=r"step 1: none of the samples \[\d+, .* has a target"):
        train(settings_for(tmp_path), progress=SilentProgress())


@pytest.mark.parametrize("site", ["weight", "gradient"])
def test_non_finite_step_is_not_taken_and_names_samples_and_parameters(tmp_path, site):
    model, dataset = make(tmp_path / "model")
    optimizer = build_optimizer(model, lr=0.1)
    if site == "weight":
        model.head.output.weight.data[0, 0] = math.nan
    else:
        model.head.output.bias.register_hook(lambda gradient: gradient * math.inf)
    before = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    with connect(device="cpu") as world:
        batches = build_micro_batches(dataset, [2, 5], epoch=0, world=world)
        with pytest.raises(NonFiniteError) as raised:
            take_step(model, optimizer, batches, num_targets=9, clip_norm=1.0, world=world, step=4)
    text = str(raised.value)
    assert text.startswith("step 4: loss ")
    assert "samples      [2, 5]" in text
    assert "gradients    not finite in head.output.bias" in text
    assert ("weights      not finite in head.output.weight\n" if site == "weight" else "weights      all finite\n") in text
    for name, tensor in model_tensors(model).items():
        torch.testing.assert_close(tensor.detach(), before[name].detach(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("step", [1, 2])
def test_what_no_gradient_reaches_is_said_after_the_first_step(tmp_path, caplog, step):
    model, dataset = make(model_folder(tmp_path / "model"))
    optimizer = build_optimizer(model, lr=0.1)
    with connect(device="cpu") as world:
        batches = build_micro_batches(dataset, [2, 5], epoch=0, world=world)
        take_step(model, optimizer, batches, num_targets=9, clip_norm=1.0, world=world, step=step)
        assert not caplog.records
        model.forgotten = nn.Linear(2, 2)
        model.frozen = nn.Linear(2, 2).requires_grad_(False)
        take_step(model, optimizer, batches, num_targets=9, clip_norm=1.0, world=world, step=step)
    told = [record.getMessage() for record in caplog.records]
    expected = "no gradient reaches forgotten.weight, forgotten.bias: trained, but the loss does not depend on them"
    assert told == ([expected] if step == 1 else [])


def what_is_not_reached(folder) -> None:
    """One rank uses a part that the other does not: it is reached."""
    from pathlib import Path

    with connect(device="cpu") as world:
        model, dataset = make(Path(folder))
        model.head.forgotten = nn.Linear(2, 2)
        prepare(model, world)
        optimizer = build_optimizer(model, lr=0.1)
        batches = build_micro_batches(dataset, range(6), epoch=0, world=world)
        log = logging.getLogger("modelzoo.training.step")
        log.addHandler(handler := Kept())
        take_step(model, optimizer, batches, num_targets=20, clip_norm=1.0, world=world, step=1)
        told = [record.getMessage() for record in handler.records]
        expected = "no gradient reaches head.forgotten.weight, head.forgotten.bias: trained, but the loss does not depend on them"
        assert told == ([expected] if world.is_main else [])


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_what_no_gradient_reaches_is_said_on_one_of_two_ranks(tmp_path):
    model_folder(tmp_path / "model")
    run_distributed(what_is_not_reached, 2, str(tmp_path / "model"))


def one_rank_goes_bad(folder) -> None:
    from pathlib import Path

    with connect(device="cpu") as world:
        model, dataset = make(Path(folder))
        prepare(model, world)
        optimizer = build_optimizer(model, lr=0.1)
        batches = build_micro_batches(dataset, range(6), epoch=0, world=world)
        if world.rank == 1:
            model.head.register_forward_hook(lambda module, args, output: output * math.nan)
        with pytest.raises(NonFiniteError, match=r"step 2: loss nan") as raised:
            take_step(model, optimizer, batches, num_targets=20, clip_norm=1.0, world=world, step=2)
        assert str(sorted(batches[0].indices)) in str(raised.value) or world.rank == 0
        assert raised.value is world.agreed_error


def test_non_finite_loss_on_one_rank_stops_all(tmp_path):
    model_folder(tmp_path / "model")
    run_distributed(one_rank_goes_bad, 2, str(tmp_path / "model"))
