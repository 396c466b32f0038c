"""Real checkpoints write what transformers wrote with them."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from modelzoo import from_pretrained, generate, load_tokenizer
from modelzoo.generation import stream

PLACES = {
    "stories260k": "checkpoints/stories260k/hf",
    "capp": "checkpoints/capp_gpt2_onnx/hf",
    "shakespeare": "checkpoints_made_here/gpt2_shakespeare",
    "t5_v1_0": "checkpoints_made_here/t5_v1_0_sst2",
    "t5_v1_1": "checkpoints_made_here/t5_v1_1_sst2",
}


def opened(testdata: Path, name: str):
    folder = testdata / PLACES[name]
    return from_pretrained(folder), json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("prepack", [False, True])
@pytest.mark.parametrize(("name", "key"), [("stories260k", "prompt"), ("shakespeare", "prompt_ids")])
def test_greedy_ids_are_the_expected_ones(testdata, name, key, prepack):
    model, expected = opened(testdata, name)
    count = len(expected["greedy_ids"]) - len(expected[key])
    found = generate(model, [expected[key]], max_new_tokens=count, prepack=prepack)
    assert found.sequences[0].tolist() == expected["greedy_ids"]


def test_text_is_the_expected_one_also_in_pieces(testdata):
    model, expected = opened(testdata, "shakespeare")
    prompt = load_tokenizer(model.source_folder).decode(expected["prompt_ids"])
    found = generate(model, prompt, max_new_tokens=60)
    assert prompt + found.texts[0] == expected["text"]
    assert "".join(stream(model, prompt, max_new_tokens=60)) == found.texts[0]


@pytest.mark.parametrize("name", ["t5_v1_0", "t5_v1_1"])
def test_answers_of_t5_are_the_expected_ones(testdata, name):
    model, expected = opened(testdata, name)
    assert generate(model, torch.tensor(expected["input_ids"])).sequences[0].tolist() == expected["generated"]


def test_first_scores_are_the_expected_ones(testdata):
    model, expected = opened(testdata, "capp")
    found = generate(model, torch.tensor(expected["input_ids"]), max_new_tokens=1, return_scores=True)
    torch.testing.assert_close(found.scores[0, 0], torch.tensor(expected["logits_last"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(PLACES))
@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "early_stopping": True}, {"num_beams": 4, "length_penalty": 2.0}])
def test_batches_write_what_transformers_writes(testdata, name, options):
    model, _ = opened(testdata, name)
    kind = transformers.T5ForConditionalGeneration if name[:2] == "t5" else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(testdata / PLACES[name])
    rows = torch.randint(4, 50, (3, 8), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(8) >= torch.tensor([[0], [5], [2]])
    pad = 52 if name == "capp" else 0
    ids = rows.masked_fill(~mask, pad)
    end = theirs.generation_config.eos_token_id
    expected = theirs.generate(ids, attention_mask=mask.long(), max_new_tokens=24, pad_token_id=pad, **options)
    found = generate(model, ids, mask, max_new_tokens=24, pad_token_id=pad, **options)
    start = found.sequences.shape[1] - max(len(row) for row in found.new_ids)
    for row, new_ids in zip(expected[:, start:].tolist(), found.new_ids, strict=True):
        assert row[: len(new_ids)] == new_ids
        assert len(new_ids) == 24 or new_ids[-1] == end
