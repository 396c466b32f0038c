"""T5 in its versions: all is as in transformers, with padding on either side and with caches."""

import pytest
import torch
from reference_decoders import inputs, pair, results
from reference_models import MASKS, assert_same_gradients, gradients, projected
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import DataError

SEQ2SEQ_TASKS = ("base", "encoder", "seq2seq_lm", "classification", "token_classification")
VARIANTS = [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {"feed_forward_proj": "gated-silu"}]


def seq2seq(task: str, mask: list[list[int]] | None) -> dict[str, Tensor]:
    batch = inputs(mask)
    if task == "classification":  # it reads the last end token, of which every row needs one, and transformers the same number
        last = torch.full((3,), 6) if mask is None else (batch["attention_mask"] * torch.arange(7)).argmax(1)
        batch["input_ids"][torch.arange(3), last] = 1
    if task in ("base", "seq2seq_lm"):
        batch["decoder_input_ids"] = torch.randint(2, 40, (3, 5), generator=torch.Generator().manual_seed(2))
    return batch


@pytest.mark.parametrize("mask", ["none", "right", "left"])
@pytest.mark.parametrize("task", SEQ2SEQ_TASKS)
@pytest.mark.parametrize("options", VARIANTS, ids=["v1.0", "v1.1", "silu"])
def test_t5_equals_transformers(task, options, mask):
    ours, theirs = pair("t5", task, **options)
    batch = seq2seq(task, MASKS[mask])
    on_decoder = task in ("base", "seq2seq_lm")
    real = None if on_decoder else batch.get("attention_mask")
    found, expected = results(ours(**batch), real)[:1], results(theirs(**batch), real)[:1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for model, result in ((ours, found), (theirs, expected)):
        model.zero_grad()
        projected(result).backward()
    tied = ours.config.tie_word_embeddings
    assert_same_gradients(
        gradients(ours), converter_for("t5").weights(task, tied=tied, values=ours.config.values()).to_ours(gradients(theirs))
    )


@pytest.mark.parametrize("is_training", [True, False])
def test_the_loss_of_t5_equals_transformers(is_training):
    ours, theirs = pair("t5", "seq2seq_lm", dropout_rate=0.0)
    labels = torch.randint(2, 40, (3, 5), generator=torch.Generator().manual_seed(2))
    labels[1, 3:] = -100
    batch = inputs(MASKS["right"])
    losses = [model(**batch, labels=labels).loss for model in (ours.train(is_training), theirs)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)


@torch.no_grad()
def test_t5_decodes_token_by_token():
    ours, _ = pair("t5", "seq2seq_lm")
    batch = inputs(MASKS["left"])
    ids = torch.randint(2, 40, (3, 5), generator=torch.Generator().manual_seed(2))
    ids[:, 0] = 0
    expected = ours(**batch, decoder_input_ids=ids).logits
    logits, state = ours.prefill(batch["input_ids"], batch["attention_mask"], 5)
    torch.testing.assert_close(logits, expected[:, 0], rtol=0, atol=1e-5)
    for column in range(1, 5):
        torch.testing.assert_close(ours.decode(ids[:, column], state), expected[:, column], rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("task", ["seq2seq_lm", "token_classification"])
def test_labels_at_padding_of_t5_are_no_targets(task, is_training):
    ours, _ = pair("t5", task, dropout_rate=0.0)
    batch = inputs(MASKS["left"])
    mask = batch["attention_mask"]
    labels = torch.randint(2, 3, mask.shape)
    if task == "seq2seq_lm":
        batch |= {"decoder_input_ids": batch["input_ids"], "decoder_attention_mask": mask}
    found = [ours.train(is_training)(**batch, labels=each).loss for each in (labels, labels.masked_fill(mask == 0, -100))]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("seq2seq_lm", {"labels": torch.full((3, 5), -1)}, r"labels: row 0, position 0: -1 is not in 0 to 39"),
        ("seq2seq_lm", {"labels": torch.full((2, 5), 3)}, r"labels must have shape \(3, 5\), found \(2, 5\)"),
        ("seq2seq_lm", {}, "a T5 for seq2seq_lm needs decoder_input_ids or labels"),
        ("base", {}, "a T5 for base needs decoder_input_ids"),
        (
            "encoder",
            {"labels": torch.zeros(3, dtype=torch.long)},
            "labels were given to a model for encoder, which takes no labels",
        ),
        ("classification", {"labels": torch.full((3,), 3)}, "labels: row 0: 3 is not in 0 to 2"),
        (
            "seq2seq_lm",
            {"decoder_input_ids": torch.full((3, 2), 40)},
            r"decoder_input_ids: row 0, position 0: id 40 is not in 0 to 39",
        ),
        (
            "seq2seq_lm",
            {"decoder_input_ids": torch.ones(3, 2, dtype=torch.long), "decoder_attention_mask": torch.ones(3, 3)},
            r"decoder_attention_mask must have the shape of decoder_input_ids, \(3, 2\), found \(3, 3\)",
        ),
    ],
)
def test_inputs_of_t5_out_of_range_are_named(task, given, message):
    ours, _ = pair("t5", task)
    batch = inputs(None)
    batch["input_ids"][:, -1] = 1
    with pytest.raises(DataError, match=message):
        ours(**batch, **given)
