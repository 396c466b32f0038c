import pytest
import torch
import torch.nn.functional as F
from reference_models import FAMILIES, gradients, inputs, pair

from modelzoo.models.losses import cross_entropy, span_loss

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def test_cross_entropy_equals_torch_where_there_are_targets():
    scores, labels = torch.randn(3, 4, 5), torch.tensor([[0, 1, -100, 2], [4, 4, 4, 4], [-100] * 4])
    torch.testing.assert_close(cross_entropy(scores, labels), F.cross_entropy(scores.flatten(0, 1), labels.flatten()))


def test_cross_entropy_of_no_target_is_zero_with_finite_gradients():
    scores = torch.randn(3, 5, requires_grad=True)
    loss = cross_entropy(scores, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(scores.grad, torch.zeros(3, 5))


def test_cross_entropy_of_half_precision_is_float32():
    scores = (torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 10).bfloat16()
    expected = F.cross_entropy(scores.float(), torch.tensor([1, 2, 3]))
    assert torch.equal(cross_entropy(scores, torch.tensor([1, 2, 3])), expected)


def test_span_loss_is_the_mean_of_both_ends():
    starts, ends = torch.randn(2, 6), torch.randn(2, 6)
    expected = (F.cross_entropy(starts, torch.tensor([1, 2])) + F.cross_entropy(ends, torch.tensor([3, 4]))) / 2
    torch.testing.assert_close(span_loss(starts, ends, torch.tensor([1, 2]), torch.tensor([3, 4])), expected)


@pytest.mark.parametrize("mask", [None, [[1] * 7, [0] * 3 + [1] * 4]])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_masked_lm_in_training_scores_labelled_tokens_alone_with_the_same_loss(family, mask):
    ours, _ = pair(family, "masked_lm", **NO_DROPOUT)
    batch = inputs(family, mask)
    labels = torch.randint(0, 40, batch["input_ids"].shape, generator=torch.Generator().manual_seed(4))
    labels[:, ::2] = -100
    expected = ours.eval()(**batch, labels=labels)
    expected.loss.backward()
    wanted = gradients(ours)
    ours.zero_grad()
    scored = []
    ours.head.register_forward_pre_hook(lambda _, given: scored.append(given[0].shape))
    found = ours.train()(**batch, labels=labels)
    found.loss.backward()
    assert found.logits is None
    assert expected.logits is not None
    real = batch["attention_mask"].bool() if mask else torch.ones_like(labels, dtype=torch.bool)
    assert scored == [(int((real & (labels != -100)).sum()), 16)]
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-6)
    for name, gradient in gradients(ours).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-6)


def test_a_masked_lm_in_training_without_labels_has_logits():
    ours, _ = pair("bert", "masked_lm")
    assert ours.train()(**inputs("bert", None)).logits.shape == (3, 7, 40)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["masked_lm", "classification", "token_classification", "question_answering"])
def test_ignored_labels_alone_give_no_loss_and_finite_gradients(family, task, is_training):
    ours, _ = pair(family, task)
    shape = (3,) if task in ("classification", "question_answering") else (3, 7)
    names = ("start_positions", "end_positions") if task == "question_answering" else ("labels",)
    loss = ours.train(is_training)(**inputs(family, None), **{name: torch.full(shape, -100) for name in names}).loss
    loss.backward()
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(ours).values())


@pytest.mark.parametrize("task", ["masked_lm", "classification", "token_classification"])
def test_loss_decreases_when_trained(task):
    ours, _ = pair("bert", task, **NO_DROPOUT)
    batch = inputs("bert", [[1] * 7, [1] * 4 + [0] * 3])
    shape = (2,) if task == "classification" else (2, 7)
    labels = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0))
    optimizer, losses = torch.optim.AdamW(ours.train().parameters(), lr=1e-2), []
    torch.manual_seed(0)
    for _ in range(25):
        loss = ours(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
