"""Logits and gradients equal transformers', for every family, task, activation, epsilon and side of the padding."""

import pytest
import torch
from reference_models import FAMILIES, MASKS, PAD, TASKS, assert_same_gradients, comparable, gradients, inputs, pair, projected

from modelzoo.converters import converter_for


def assert_equal_models(ours, theirs, family, task, batch, logits=1e-5, gradient=1e-5):
    mask = batch.get("attention_mask")
    results = [comparable(model(**batch), mask) for model in (ours, theirs)]
    assert len(results[0]) == len(results[1])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=logits)
    for model, result in zip((ours, theirs), results, strict=True):
        model.zero_grad()
        projected(result).backward()
    tied = ours.config.tie_word_embeddings
    expected = converter_for(family).weights(task, tied=tied).to_ours(gradients(theirs))
    assert_same_gradients(gradients(ours), expected, gradient)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_equal_transformers(family, task, mask):
    ours, theirs = pair(family, task)
    batch = inputs(family, MASKS[mask])
    assert_equal_models(ours, theirs, family, task, batch)
    # In double precision nothing is left of rounding: what differs there would be another function.
    assert_equal_models(ours.double(), theirs.double(), family, task, batch, logits=1e-12, gradient=1e-12)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu", "silu", "tanh", "gelu_10"])
@pytest.mark.parametrize("task", ["masked_lm", "classification"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_activation_is_the_one_of_the_config(family, task, activation):
    # RoBERTa's language-model head has gelu whatever the config says; BERT's has the config's.
    ours, theirs = pair(family, task, hidden_act=activation)
    assert_equal_models(ours, theirs, family, task, inputs(family, MASKS["right"]))


@pytest.mark.parametrize("eps", [1e-5, 1e-12])
@pytest.mark.parametrize("task", ["base", "masked_lm", "classification"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_epsilon_is_the_one_of_the_config_where_variances_are_low(family, task, eps):
    ours, theirs = pair(family, task, layer_norm_eps=eps, spread=1e-3, tie_word_embeddings=task != "masked_lm")
    assert_equal_models(ours, theirs, family, task, inputs(family, MASKS["right"]))
    other, _ = pair(
        family, task, layer_norm_eps=1e-5 if eps == 1e-12 else 1e-12, spread=1e-3, tie_word_embeddings=task != "masked_lm"
    )
    mine, wrong = (comparable(model(**inputs(family, None)), None)[0] for model in (ours, other))
    assert (mine - wrong).abs().max() > 5e-5  # the tolerance above sees a wrong epsilon


@pytest.mark.parametrize("task", ["base", "token_classification"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mask", ["none", "left"])
def test_position_ids_are_rows_of_the_position_table(family, task, mask):
    ours, theirs = pair(family, task)
    batch = inputs(family, MASKS[mask])
    batch["position_ids"] = torch.randint(0, 18, batch["input_ids"].shape, generator=torch.Generator().manual_seed(3))
    assert_equal_models(ours, theirs, family, task, batch)
    shared = batch | {"position_ids": batch["position_ids"][:1]}
    expected = ours(**batch | {"position_ids": batch["position_ids"][:1].expand_as(batch["input_ids"])})
    assert torch.equal(comparable(ours(**shared), None)[0], comparable(expected, None)[0])


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_padding_ids_without_a_mask_take_no_position(family):
    ours, theirs = pair(family, "token_classification")
    batch = inputs(family, None)
    batch["input_ids"][1, :3] = PAD[family]
    batch["input_ids"][2, 4:] = PAD[family]
    assert_equal_models(ours, theirs, family, "token_classification", batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untied_head_has_a_table_of_its_own(family):
    ours, theirs = pair(family, "masked_lm", tie_word_embeddings=False)
    assert ours.tied_parameters() == []
    batch = inputs(family, MASKS["right"])
    results = [comparable(model(**batch), batch["attention_mask"])[0] for model in (ours, theirs)]
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [1, 2, 3])
def test_without_token_types_all_are_of_the_first(family, types):
    ours, theirs = pair(family, "base", type_vocab_size=types)
    batch = inputs(family, MASKS["right"])
    batch.pop("token_type_ids", None)
    assert_equal_models(ours, theirs, family, "base", batch)


def labels(task, batch, classes=3):
    generator = torch.Generator().manual_seed(5)
    ids = batch["input_ids"]
    if task == "question_answering":
        return {"start_positions": torch.tensor([1, 0, 3]), "end_positions": torch.tensor([4, 2, 6])}
    if task == "classification":
        return {"labels": torch.tensor([2, 0, -100])}
    wanted = torch.randint(0, 40 if task == "masked_lm" else classes, ids.shape, generator=generator)
    hidden = torch.rand(ids.shape, generator=generator) < 0.5
    if "attention_mask" in batch:
        hidden |= batch["attention_mask"] == 0
    return {"labels": wanted.masked_fill(hidden, -100)}


@pytest.mark.parametrize("mask", ["none", "right"])
@pytest.mark.parametrize("task", TASKS[1:])
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_their_gradients_equal_transformers(family, task, mask):
    if task == "question_answering" and mask == "right":
        pytest.skip("transformers lets padding take part in the softmax over positions; the next test has the rule here")
    ours, theirs = pair(family, task)
    batch = inputs(family, MASKS[mask])
    batch |= labels(task, batch)
    losses = [model(**batch).loss for model in (ours, theirs)]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-5)
    for loss in losses:
        loss.backward()
    assert_same_gradients(gradients(ours), converter_for(family).weights(task).to_ours(gradients(theirs)))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_answer_starts_or_ends_in_padding(family):
    ours, theirs = pair(family, "question_answering")
    batch = inputs(family, [[1] * 7, [1] * 4 + [0] * 3, [0] * 2 + [1] * 5])
    starts, ends, real = torch.tensor([1, 0, 3]), torch.tensor([4, 2, 6]), batch["attention_mask"].bool()
    reference = theirs(**batch)
    losses = [
        torch.nn.functional.cross_entropy(each.masked_fill(~real, float("-inf")), wanted)
        for each, wanted in ((reference.start_logits, starts), (reference.end_logits, ends))
    ]
    found = ours(**batch, start_positions=starts, end_positions=ends)
    torch.testing.assert_close(found.loss, sum(losses) / 2, rtol=0, atol=1e-5)
    assert (found.start_logits[~real] == torch.finfo(torch.float32).min).all()
    assert found.start_logits.softmax(-1)[~real].max() == 0
