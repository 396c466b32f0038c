"""Padding changes nothing: not the results, not the gradients, not the loss, wherever it stands."""

import pytest
import torch
from reference_models import FAMILIES, PAD, TASKS, assert_same_gradients, gradients, inputs, ours_like, pair, reference

TEXTS = (7, 4, 1, 5)


def model(family, task, **options):
    return ours_like(reference(family, task, **options), family, task)


def texts(family):
    """Return each text alone, as a batch of one row without padding."""
    batch = inputs(family, [[1] * 7] * len(TEXTS))
    batch.pop("attention_mask")
    return [{name: each[row : row + 1, :length] for name, each in batch.items()} for row, length in enumerate(TEXTS)]


def padded(family, rows, side, extra_rows=0):
    """Return texts as one batch: padded to 9 columns on a side, with rows of padding alone at both ends."""
    count = len(rows) + 2 * extra_rows
    batch = {name: torch.full((count, 9), PAD[family] if name == "input_ids" else 0) for name in rows[0]}
    batch["attention_mask"] = torch.zeros(count, 9, dtype=torch.long)
    if family == "bert":
        batch["position_ids"] = torch.zeros(count, 9, dtype=torch.long)  # else a position is a column
    for row, text in enumerate(rows, extra_rows):
        length = text["input_ids"].shape[1]
        place = slice(0, length) if side == "right" else slice(9 - length, 9)
        for name, each in text.items():
            batch[name][row, place] = each[0]
        batch["attention_mask"][row, place] = 1
        if family == "bert":
            batch["position_ids"][row, place] = torch.arange(length)
    return batch


def results(output, mask):
    """Return the tensors of an output, without padding."""
    by_token = [each for each in (output.last_hidden_state, output.start_logits, output.end_logits) if each is not None]
    if output.logits is not None and output.logits.dim() == 3:
        by_token.append(output.logits)
    by_row = [each for each in (output.pooler_output, output.logits) if each is not None and each.dim() == 2]
    rows = mask.bool().any(1)
    return [each[mask.bool()] for each in by_token] + [each[rows] for each in by_row]


@pytest.mark.parametrize("extra_rows", [0, 1])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_equals_its_texts_one_by_one(family, task, side, extra_rows):
    ours, rows, found = model(family, task), texts(family), []
    alone = [results(ours(**each), torch.ones_like(each["input_ids"])) for each in rows]
    expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    sum(each.square().sum() for each in expected).backward()
    wanted = gradients(ours)
    ours.zero_grad()
    batch = padded(family, rows, side, extra_rows)
    found = results(ours(**batch), batch["attention_mask"])
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
    sum(each.square().sum() for each in found).backward()
    assert_same_gradients(gradients(ours), wanted, 2e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_a_batch_of_padding_alone_is_finite_and_has_no_gradient(family, task):
    ours = model(family, task)
    batch = {"input_ids": torch.full((2, 4), PAD[family]), "attention_mask": torch.zeros(2, 4, dtype=torch.long)}
    wanted = {
        "base": {},
        "classification": {"labels": torch.tensor([1, 2])},
        "question_answering": {"start_positions": torch.tensor([-100, -100]), "end_positions": torch.tensor([-100, -100])},
    }.get(task, {"labels": torch.ones(2, 4, dtype=torch.long)})
    output = ours(**batch, **wanted)
    for name in ("logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits"):
        assert getattr(output, name) is None or getattr(output, name).isfinite().all()
    if task == "base":
        return
    assert output.loss.item() == 0
    output.loss.backward()
    assert all(not each.any() for each in gradients(ours).values())


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["masked_lm", "classification", "token_classification"])
def test_labels_at_padding_are_no_targets(family, task, is_training):
    ours = model(family, task, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train(is_training)
    rows = texts(family)
    batch = padded(family, rows, "left", extra_rows=1)
    shape = batch["input_ids"].shape[: 1 if task == "classification" else 2]
    wanted = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0))
    real = batch["attention_mask"].bool()
    real = real.any(1) if task == "classification" else real
    loss = ours(**batch, labels=wanted).loss
    assert torch.equal(loss, ours(**batch, labels=wanted.masked_fill(~real, -100)).loss)
    losses, counts = [], []
    for row, text in enumerate(rows, 1):
        own = wanted[row : row + 1] if task == "classification" else wanted[row : row + 1, -text["input_ids"].shape[1] :]
        losses.append(ours(**text, labels=own).loss * own.numel())
        counts.append(own.numel())
    torch.testing.assert_close(loss, sum(losses) / sum(counts), rtol=0, atol=2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_of_any_id_and_type_is_not_read(family):
    ours = model(family, "base")
    batch = padded(family, texts(family), "right")
    expected = ours(**batch).last_hidden_state
    for name in ("input_ids", "token_type_ids"):
        if name in batch and not (family != "bert" and name == "input_ids"):  # RoBERTa counts positions by ids
            batch[name] = batch[name].masked_fill(batch["attention_mask"] == 0, 1)
    assert torch.equal(ours(**batch).last_hidden_state, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_a_mask_may_be_of_any_dtype(dtype):
    ours, batch = model("bert", "classification"), padded("bert", texts("bert"), "left")
    expected = ours(**batch).logits
    assert torch.equal(ours(**batch | {"attention_mask": batch["attention_mask"].to(dtype)}).logits, expected)


def test_ids_may_be_of_32_bits():
    ours, theirs = pair("roberta", "classification")
    batch = inputs("roberta", None)
    found = ours(input_ids=batch["input_ids"].int(), labels=torch.tensor([0, 1, 2], dtype=torch.int32))
    torch.testing.assert_close(found.loss, theirs(**batch, labels=torch.tensor([0, 1, 2])).loss, rtol=0, atol=1e-5)
