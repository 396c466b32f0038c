"""GPT-2, GPT-J, OPT, LLaMA and its relatives: all is as in transformers, with padding on either side and with caches."""

import pytest
import torch
import transformers
from reference_decoders import by_our_names, inputs, pair, results
from reference_models import MASKS, assert_same_gradients, gradients, projected
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import DataError
from modelzoo.models.auto import model_class

DECODERS = ("gpt2", "gptj", "llama", "mistral", "mixtral", "opt", "qwen2", "qwen2_moe", "qwen3")
WITH_TASKS = [(family, task) for family in DECODERS for task in converter_for(family).architectures]
ROPES = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 12},
    {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 12, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]


def with_positions(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what transformers has to be given: `generate` counts the tokens of the mask, a plain forward does not."""
    if "attention_mask" not in batch:
        return batch
    return batch | {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)}


def assert_equal_models(ours, theirs, batch, given, tolerance=1e-5, gradient=1e-5):
    found, expected = results(ours(**batch), batch.get("attention_mask")), results(theirs(**given), batch.get("attention_mask"))
    for mine, other in zip(found[:1], expected[:1], strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)
    for model, result in ((ours, found), (theirs, expected)):
        model.zero_grad()
        projected(result[:1]).backward()
    assert_same_gradients(gradients(ours), by_our_names(ours, theirs, gradients(theirs)), gradient)


@pytest.mark.parametrize("family", DECODERS)
def test_the_defaults_are_transformers_own(family):
    converter, config_class = converter_for(family), model_class(family).config_class
    theirs = transformers.AutoConfig.for_model(family).to_dict() | {"id2label": None, "label2id": None}
    for source in ({}, theirs):
        assert config_class(**converter.read_config(source)).values() == config_class().values()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("family", "task"), WITH_TASKS)
def test_logits_and_gradients_equal_transformers(family, task, mask):
    ours, theirs = pair(family, task)
    batch = inputs(MASKS[mask])
    assert_equal_models(ours, theirs, batch, with_positions(batch))


@pytest.mark.parametrize("rope", ROPES)
def test_every_rotary_scaling_equals_transformers(rope):
    for length in (18, 12):  # beyond the trained length and within
        ours, theirs = pair("llama", "causal_lm", rope_parameters=rope | {"rope_theta": 10000.0}, max_position_embeddings=length)
        ids = torch.randint(2, 40, (2, 12), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


def test_dynamic_scaling_reaches_beyond_the_positions_but_not_with_caches():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ours, theirs = pair("llama", "causal_lm", rope_parameters=rope, max_position_embeddings=8)
    ids = torch.randint(2, 40, (2, 16), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
    with pytest.raises(DataError, match="17 tokens, limit 16"):
        ours(torch.ones(1, 17, dtype=torch.long))
    with pytest.raises(DataError, match=r"9 tokens, limit 8 \(a prompt of 6 and 3 new tokens\)"):
        ours.prefill(ids[:, :6], None, 3)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 20])
def test_the_window_of_mistral_equals_transformers(window):
    ours, theirs = pair("mistral", "causal_lm", sliding_window=window)
    batch = inputs(None)
    assert_equal_models(ours, theirs, batch, batch)


def test_the_windowed_layers_of_qwen_equal_transformers():
    ours, theirs = pair("qwen3", "causal_lm", use_sliding_window=True, sliding_window=3, max_window_layers=1)
    batch = inputs(None)
    assert_equal_models(ours, theirs, batch, batch)


@pytest.mark.parametrize(
    "options", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}, {"activation_function": "relu"}]
)
def test_the_options_of_gpt2_equal_transformers(options):
    ours, theirs = pair("gpt2", "causal_lm", **options)
    batch = inputs(None)
    assert_equal_models(ours, theirs, batch, batch)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("mask", ["none", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_the_language_model_loss_and_its_gradients_equal_transformers(family, mask, is_training):
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if family == "gpt2" else {}
    ours, theirs = pair(family, "causal_lm", **quiet)
    batch = inputs(MASKS[mask])
    labels = batch["input_ids"].clone()
    labels[0, 3] = -100
    if mask == "right":
        labels[batch["attention_mask"] == 0] = -100
    losses = [ours.train(is_training)(**batch, labels=labels).loss, theirs(**with_positions(batch), labels=labels).loss]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
    for loss in losses:
        loss.backward()
    assert_same_gradients(gradients(ours), by_our_names(ours, theirs, gradients(theirs)))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("family", "task"), [each for each in WITH_TASKS if each[1] not in ("base", "question_answering")])
def test_labels_at_padding_are_no_targets(family, task, is_training):
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if family == "gpt2" else {}
    ours, _ = pair(family, task, classifier_dropout=0.0, **options)
    batch = inputs([[1] * 7, [0] * 3 + [1] * 4, [0] * 7])
    real = batch["attention_mask"].bool()
    real = real.any(1) if task == "classification" else real
    labels = torch.randint(0, 3, real.shape, generator=torch.Generator().manual_seed(0))
    loss = ours.train(is_training)(**batch, labels=labels).loss
    assert torch.equal(loss, ours(**batch, labels=labels.masked_fill(~real, -100)).loss)
    empty = {name: each[2:] for name, each in batch.items()}
    nothing = ours(**empty, labels=labels[2:]).loss
    nothing.backward()
    assert nothing.item() == 0
    assert all(not gradient.any() for gradient in gradients(ours).values())


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_left_padding_changes_nothing(family):
    ours, _ = pair(family, "causal_lm")
    ids = torch.tensor([[5, 6, 7]])
    padded, mask = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    expected = ours(ids).logits
    largest = float(expected.abs().max())
    torch.testing.assert_close(ours(padded, mask).logits[:1, 2:], expected, rtol=0, atol=1e-6 * max(largest, 1))


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_decoding_token_by_token_equals_the_full_forward(family):
    ours, _ = pair(family, "causal_lm")
    ids = torch.randint(2, 40, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[0, 0, 1, 1], [1] * 4])
    whole = torch.cat([mask, torch.ones(2, 5, dtype=torch.long)], 1)
    expected = ours(ids, whole).logits
    logits, state = ours.prefill(ids[:, :4], mask, 5)
    torch.testing.assert_close(logits, expected[:, 3], rtol=0, atol=1e-5)
    for column in range(4, 9):
        logits = ours.decode(ids[:, column], state)
        torch.testing.assert_close(logits, expected[:, column], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"position_ids": torch.full((3, 7), 18)},
            r"position_ids: row 0, position 0: id 18 is not in 0 to 17 \(max_positions=18\)",
        ),
        ({"position_ids": torch.full((3, 7), -1)}, r"position_ids: row 0, position 0: id -1 is not in 0 to 17"),
        (
            {"position_ids": torch.zeros(3, 6, dtype=torch.long)},
            r"position_ids must have the shape of input_ids, \(3, 7\), found \(3, 6\)",
        ),
        ({"attention_mask": torch.ones(3, 6)}, r"attention_mask must have shape \(3, 7\), found \(3, 6\)"),
        ({"labels": torch.full((3, 7), 40)}, r"labels: row 0, position 0: 40 is not in 0 to 39"),
        ({"labels": torch.full((3, 7), -1)}, r"labels: row 0, position 0: -1 is not in 0 to 39"),
    ],
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_inputs_out_of_range_are_named(family, given, message):
    ours, _ = pair(family, "causal_lm")
    with pytest.raises(DataError, match=message):
        ours(**inputs(None), **given)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_sequence_longer_than_the_model_is_refused(family):
    ours, _ = pair(family, "causal_lm")
    with pytest.raises(DataError, match=r"19 tokens, limit 18 \(18 positions\)"):
        ours(torch.ones(1, 19, dtype=torch.long))
    with pytest.raises(DataError, match=r"19 tokens, limit 18 \(a prompt of 15 and 4 new tokens\)"):
        ours.prefill(torch.ones(1, 15, dtype=torch.long), None, 4)


def test_caches_take_no_labels_and_no_classifier():
    ours, _ = pair("gpt2", "causal_lm")
    _, state = ours.prefill(torch.ones(1, 4, dtype=torch.long), None, 4)
    with pytest.raises(DataError, match="caches were given with labels"):
        ours(torch.ones(1, 1, dtype=torch.long), caches=state.caches, labels=torch.ones(1, 1, dtype=torch.long))
    classifier, _ = pair("gpt2", "classification")
    with pytest.raises(DataError, match="caches were given to a model for classification"):
        classifier(torch.ones(1, 1, dtype=torch.long), caches=state.caches)
