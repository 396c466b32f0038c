"""What may be a prompt, how it is padded, and what is refused."""

import pytest
import torch
import transformers
from tiny_writers import END, PAD, batch, folder, ours

from modelzoo import from_pretrained, generate, load_tokenizer
from modelzoo.errors import ConfigError, DataError


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_lists_texts_and_padded_ids_are_the_same_prompts(name):
    ids, mask = batch()
    ids = ids.clamp(max=54)  # letters alone: half a character has no text
    rows = [ids[row, mask[row] == 1].tolist() for row in range(len(ids))]
    tokenizer = load_tokenizer(folder(name))
    texts = [tokenizer.decode(row) for row in rows]
    expected = generate(ours(name), ids, mask, max_new_tokens=8)
    assert [each.input_ids for each in tokenizer.encode(texts)] == rows
    for given in (ids, rows, texts):
        assert torch.equal(generate(ours(name), given, max_new_tokens=8).sequences, expected.sequences)


def test_one_text_is_one_prompt():
    assert generate(ours("gpt2"), "abc", max_new_tokens=2).sequences.shape == (1, 5)


def test_texts_are_returned_where_texts_came_in_or_a_tokenizer():
    assert generate(ours("gpt2"), [[3, 4]], max_new_tokens=2).texts is None
    assert len(generate(ours("gpt2"), ["ab"], max_new_tokens=2).texts[0]) > 0
    assert len(generate(ours("gpt2"), [[3, 4]], max_new_tokens=2, tokenizer=load_tokenizer(folder("gpt2"))).texts[0]) > 0


RIGHT = torch.tensor([[5, 6, 7], [8, 9, PAD]])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_on_the_right_is_refused_by_row(name):
    with pytest.raises(DataError, match=r"row 1: padding stands after a token.* pad prompts on the left"):
        generate(ours(name), RIGHT, (RIGHT != PAD).long())
    with pytest.raises(DataError, match=r"row 1: padding stands after a token"):
        generate(ours(name), RIGHT)


def test_padding_with_the_end_token_on_the_right_is_refused():
    padded = RIGHT.masked_fill(RIGHT == PAD, END)
    with pytest.raises(DataError, match=r"row 1 ends with 1, which ends a text and also pads"):
        generate(ours("gpt2"), padded, pad_token_id=END)
    assert generate(ours("gpt2"), padded, torch.ones_like(padded), pad_token_id=END, max_new_tokens=2).sequences.shape == (2, 5)
    assert generate(ours("gpt2"), torch.full((2, 1), END), pad_token_id=END, max_new_tokens=2, eos_token_id=END).new_ids


def test_an_encoder_takes_padding_on_either_side():
    left = torch.tensor([[5, 6, 7], [PAD, 8, 9]])
    assert generate(ours("t5"), RIGHT).new_ids == generate(ours("t5"), left).new_ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"there is no prompt"),
        ([[3], []], r"prompt 1: the list has no token"),
        (["a", ""], r"prompt 1: the text '' has no token"),
        (["a", [3]], r"prompts are texts and ids mixed"),
        ([3, 4], r"prompt 0: expected a text or a list of ids, found an integer, so \[\[...\]\] is meant"),
        ([[3, 4.5]], r"prompt 0: expected a text or a list of ids, found \[3, 4.5\]"),
        ([[3, 60]], r"input_ids: row 0, position 1: id 60 is not in 0 to 59"),
        (torch.tensor([3, 4]), r"input_ids must be \(batch, tokens\), found shape \(2,\)"),
        (torch.tensor([[3.0]]), r"input_ids must be integers, found torch.float32"),
        (torch.zeros(0, 3, dtype=torch.long), r"input_ids is empty"),
        (torch.tensor([[3, 4], [PAD, PAD]]), r"row 1 has no token"),
        ([[3] * 30], r"a prompt of 30 tokens and max_new_tokens=20 exceed the limit 40; set max_new_tokens to 10 or less"),
        ([[3] * 45], r"a prompt of 45 tokens and max_new_tokens=20 exceed the limit 40; shorten the prompt"),
    ],
)
def test_a_wrong_prompt_is_refused_by_name(given, message):
    with pytest.raises(DataError, match=message):
        generate(ours("gpt2"), given)


def test_masks_must_fit():
    with pytest.raises(DataError, match=r"attention_mask must have the shape of input_ids, \(2, 3\), found \(2, 2\)"):
        generate(ours("gpt2"), RIGHT, torch.ones(2, 2))
    with pytest.raises(DataError, match=r"attention_mask was given with texts or lists"):
        generate(ours("gpt2"), [[3, 4]], torch.ones(1, 2))


def test_the_whole_length_of_the_model_can_be_used():
    assert generate(ours("gpt2"), [[3] * 10], max_new_tokens=30, eos_token_id=()).sequences.shape == (1, 40)


def test_end_and_padding_ids_come_from_the_folder(tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder("gpt2"))
    free = generate(ours("gpt2"), [[9, 5, 7, 4]], max_new_tokens=8, eos_token_id=()).new_ids[0]
    ends = [free[3], free[5]]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = 41
    model.save_pretrained(tmp_path)
    first = min(free.index(end) for end in ends)
    found = generate(from_pretrained(tmp_path), [[9, 5, 7, 4], [3]], max_new_tokens=8)
    assert found.new_ids[0] == free[: first + 1]
    assert all(token == 41 for token in found.sequences[0, 4 + first + 1 :])
    assert found.sequences[1, 0] == 41
    (tmp_path / "generation_config.json").unlink()
    assert generate(from_pretrained(tmp_path), [[9, 5, 7, 4]], max_new_tokens=8).new_ids[0] == free


def test_a_model_that_writes_nothing_is_refused(tmp_path):
    from modelzoo import Bert, BertConfig
    from modelzoo.models.gpt2 import GPT2

    bert = Bert.from_config(BertConfig(vocab_size=9, hidden_size=4, num_layers=1, num_heads=1, intermediate_size=4), "masked_lm")
    with pytest.raises(ConfigError, match=r"this Bert was built for masked_lm; its family writes no text"):
        generate(bert, [[1]])
    base = GPT2.from_pretrained(folder("gpt2"), task="base")
    with pytest.raises(ConfigError, match=r"this GPT2 was built for base; load it with task='causal_lm'"):
        generate(base, [[1]])


def test_texts_for_a_model_without_a_folder_need_a_tokenizer():
    from modelzoo.models.gpt2 import GPT2

    model = GPT2.from_config(ours("gpt2").config, "causal_lm")
    with pytest.raises(ConfigError, match=r"this model came from no folder"):
        generate(model, "abc")
    assert generate(model, "abc", tokenizer=load_tokenizer(folder("gpt2")), max_new_tokens=2).texts is not None
