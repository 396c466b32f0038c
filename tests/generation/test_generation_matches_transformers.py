"""Greedy decoding, sampling and beam search write what transformers writes, token for token."""

import itertools

import pytest
import torch
from tiny_writers import END, PAD, WRITERS, batch, ours, theirs
from torch import Tensor

from modelzoo import generate

MANY_ENDS = list(range(4, 60, 8))  # so that rows and beams end at different steps
RULES = [
    {},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.8, "min_new_tokens": 6},
    {"eos_token_id": [7, 11, 30, 41]},
    {"eos_token_id": MANY_ENDS},
]
SAMPLING = [
    {"top_k": None, "seed": 3},
    {"top_k": 7, "seed": 2**62},
    {"top_k": None, "top_p": 0.6, "temperature": 1.4},
    {"top_k": 30, "min_p": 0.2, "temperature": 0.7, "repetition_penalty": 1.3, "num_return_sequences": 2},
]
BEAMS = [
    {"num_beams": 2},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0},
    {"num_beams": 3, "length_penalty": -1.5, "early_stopping": True},
    {"num_beams": 3, "length_penalty": 0.7, "early_stopping": "never", "eos_token_id": MANY_ENDS},
    {"num_beams": 3, "early_stopping": True, "repetition_penalty": 1.4, "eos_token_id": MANY_ENDS},
    {"num_beams": 3, "min_new_tokens": 5, "eos_token_id": [7, 11, 30]},
]


def reference(name: str, ids: Tensor, mask: Tensor, **options):
    seed = options.pop("seed", None)
    if seed is not None:
        torch.manual_seed(seed)
    if options.get("do_sample") and options.get("top_k", 50) is None:
        options["top_k"] = 0  # transformers' word for all
    options = {"eos_token_id": END} | options
    return theirs(name).generate(
        ids, attention_mask=mask, max_new_tokens=12, pad_token_id=PAD, return_dict_in_generate=True, output_scores=True, **options
    )


def without_padding(sequences: Tensor, ends: list[int], start: int) -> list[list[int]]:
    """Rows up to their end: transformers fills up beams with the end token where the padding id is 0."""
    rows = []
    for row in sequences.tolist():
        new = row[start:]
        length = next((place + 1 for place, token in enumerate(new) if token in ends), len(new))
        rows.append(row[:start] + new[:length])
    return rows


@pytest.mark.parametrize(("name", "options"), list(itertools.product(WRITERS, RULES)))
def test_greedy_tokens_and_scores_are_those_of_transformers(name, options):
    ids, mask = batch()
    expected = reference(name, ids, mask, **options)
    found = generate(ours(name), ids, mask, max_new_tokens=12, return_scores=True, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert len({tuple(row) for row in found.new_ids}) > 1, "all rows are alike, so little was tested"
    lengths = [len(row) for row in found.new_ids]
    penalty = options.get("repetition_penalty", 1.0)
    tolerance = 1e-5 * max(penalty, 1 / penalty)  # logits are within 1e-5, and a penalty multiplies or divides them
    for step, scores in enumerate(expected.scores):
        writing = [row for row, length in enumerate(lengths) if step < length]
        torch.testing.assert_close(found.scores[writing, step], scores[writing], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), list(itertools.product(WRITERS, SAMPLING)))
def test_sampled_tokens_are_those_of_transformers(name, options):
    ids, mask = batch()
    options = {"do_sample": True, "seed": 0} | options
    expected = reference(name, ids, mask, **options)
    found = generate(ours(name), ids, mask, max_new_tokens=12, **options)
    assert torch.equal(found.sequences, expected.sequences)


@pytest.mark.parametrize(("name", "options"), list(itertools.product(WRITERS, BEAMS)))
def test_beams_and_their_scores_are_those_of_transformers(name, options):
    ids, mask = batch()
    expected = reference(name, ids, mask, **options)
    found = generate(ours(name), ids, mask, max_new_tokens=12, **options)
    ends = options.get("eos_token_id", [END])
    start = ids.shape[1] if name[:2] != "t5" else 1
    assert without_padding(found.sequences, ends, start) == without_padding(expected.sequences, ends, start)
    torch.testing.assert_close(found.sequence_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
    assert [row[start:] for row in without_padding(expected.sequences, ends, start)] == found.new_ids


@pytest.mark.parametrize("name", WRITERS)
def test_some_beams_end_early_and_some_do_not(name):
    lengths = {len(row) for options in BEAMS for row in generate(ours(name), *batch(), max_new_tokens=12, **options).new_ids}
    assert len(lengths) > 2, "the beams that were compared all have one length"


@pytest.mark.parametrize("name", WRITERS)
def test_padding_on_the_left_changes_no_token(name):
    ids, mask = batch()
    together = generate(ours(name), ids, mask, max_new_tokens=10)
    for row in range(len(ids)):
        alone = generate(ours(name), ids[row : row + 1, mask[row] == 1], max_new_tokens=10)
        assert alone.new_ids[0] == together.new_ids[row]


@pytest.mark.parametrize("name", WRITERS)
def test_every_step_scores_as_the_whole_text_does(name):
    model, (ids, mask) = ours(name), batch()
    found = generate(model, ids, mask, max_new_tokens=14, return_scores=True, eos_token_id=())
    if name[:2] == "t5":
        whole = model(ids, attention_mask=mask, decoder_input_ids=found.sequences).logits[:, :-1]
    else:
        full = torch.cat([mask, torch.ones(len(ids), 14, dtype=torch.long)], dim=1)
        whole = model(found.sequences, attention_mask=full).logits[:, ids.shape[1] - 1 : -1]
    torch.testing.assert_close(found.scores, whole.detach(), rtol=0, atol=1e-5)
