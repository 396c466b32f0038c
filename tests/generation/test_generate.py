"""What a call leaves alone, seeds, streaming, stop strings and what is returned."""

import itertools

import pytest
import torch
from tiny_writers import END, PAD, WRITERS, batch, folder, ours

from modelzoo import from_pretrained, generate, load_tokenizer
from modelzoo.errors import ConfigError, DataError
from modelzoo.generation import stream


def test_a_seed_decides_and_the_global_generator_is_left_alone():
    ids, mask = batch()
    options = {"do_sample": True, "top_k": None, "max_new_tokens": 10}
    ours("gpt2")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = generate(ours("gpt2"), ids, mask, seed=4, **options)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(generate(ours("gpt2"), ids, mask, seed=4, **options).sequences, first.sequences)
    assert not torch.equal(generate(ours("gpt2"), ids, mask, seed=5, **options).sequences, first.sequences)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True}])
def test_modes_weights_and_gradients_are_left_as_they_were(options):
    model = from_pretrained(folder("gpt2"))
    model.train()
    model.decoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    generate(model, [[3, 4]], max_new_tokens=3, prepack=True, **options)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled()


def test_an_error_while_writing_leaves_the_model_as_it_was():
    model = from_pretrained(folder("gpt2")).train()
    with pytest.raises(KeyError, match="mine"):
        generate(model, "ab", max_new_tokens=3, prepack=True, on_text=lambda row, piece: {}["mine"])
    assert all(module.training for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def test_dropout_is_off_while_a_model_in_training_writes():
    model = from_pretrained(folder("gpt2"), dropout=0.5).train()
    assert torch.equal(generate(model, [[3, 4]]).sequences, generate(ours("gpt2"), [[3, 4]]).sequences)


def test_rows_that_have_ended_are_padded():
    ids, mask = batch(5)
    free = generate(ours("llama"), ids, mask, max_new_tokens=12, eos_token_id=())
    ends = [free.new_ids[0][2], free.new_ids[1][5]]
    found = generate(ours("llama"), ids, mask, max_new_tokens=12, eos_token_id=ends, pad_token_id=PAD)
    lengths = [next((place + 1 for place, each in enumerate(row) if each in ends), 12) for row in free.new_ids]
    assert len(set(lengths)) > 1
    assert found.new_ids == [row[:length] for row, length in zip(free.new_ids, lengths, strict=True)]
    assert found.sequences.shape == (5, 6 + max(lengths))
    for row, length in enumerate(lengths):
        assert not found.sequences[row, 6 + length :].any()


def test_writing_stops_when_all_rows_have_ended():
    model, calls = from_pretrained(folder("gpt2")), []
    first = generate(model, [[3, 4]], max_new_tokens=1, eos_token_id=()).new_ids[0][0]
    decode = model.decode
    model.decode = lambda ids, state: calls.append(ids) or decode(ids, state)
    assert generate(model, [[3, 4]], max_new_tokens=9, eos_token_id=first).new_ids == [[first]]
    assert not calls
    generate(model, [[3, 4]], max_new_tokens=9, eos_token_id=())
    assert len(calls) == 8, "the last token needs no forward of its own"


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 3}])
def test_a_stream_is_the_text_in_pieces(options):
    expected = generate(ours("gpt2"), "abc", max_new_tokens=20, **options).texts[0]
    pieces = list(stream(ours("gpt2"), "abc", max_new_tokens=20, **options))
    assert "".join(pieces) == expected
    assert len(pieces) > 3


def test_a_stream_gives_its_first_piece_before_the_rest_is_written():
    model, count = from_pretrained(folder("gpt2")), itertools.count()
    model.train()
    decode = model.decode
    model.decode = lambda ids, state: (next(count), decode(ids, state))[1]
    pieces = stream(model, "abc", max_new_tokens=20, eos_token_id=())
    next(pieces)
    assert torch.is_grad_enabled(), "a caller between two pieces computes gradients as before"
    assert next(count) < 4
    pieces.close()
    assert model.training


def test_each_row_has_its_own_stream():
    said = {0: "", 1: "", 2: ""}

    def on_text(row, piece):
        said[row] += piece

    ids, mask = batch()
    found = generate(ours("gpt2"), ids, mask, max_new_tokens=12, on_text=on_text)
    assert found.texts == list(said.values())


def test_streaming_refuses_beams_and_several_rows():
    with pytest.raises(ConfigError, match=r"num_beams=2: a beam search knows its text at the end only"):
        stream(ours("gpt2"), "abc", num_beams=2)
    with pytest.raises(DataError, match=r"2 rows were given to stream"):
        stream(ours("gpt2"), ["abc", "d"])
    with pytest.raises(ConfigError, match=r"num_beams=2"):
        generate(ours("gpt2"), "abc", num_beams=2, on_text=print)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_stop_strings_end_each_row_for_itself(name):
    ids, mask = batch()
    free = generate(ours(name), ids, mask, max_new_tokens=15, tokenizer=load_tokenizer(folder(name)), eos_token_id=())
    stops = [free.texts[0][3:5], free.texts[1][6:8]]
    found = generate(ours(name), ids, mask, max_new_tokens=15, stop_strings=stops, eos_token_id=())
    for text, whole, new_ids in zip(found.texts, free.texts, found.new_ids, strict=True):
        places = [whole.find(stop) for stop in stops if stop in whole]
        assert text == (whole[: min(places)] if places else whole)
        assert len(new_ids) == 15 or places
    assert len(found.new_ids[0]) < 15


def test_beams_stop_at_stop_strings():
    tokenizer = load_tokenizer(folder("gpt2"))
    free = generate(ours("gpt2"), "abc", max_new_tokens=10, num_beams=3, eos_token_id=())
    stop = free.texts[0][4]
    found = generate(
        ours("gpt2"), "abc", max_new_tokens=10, num_beams=3, eos_token_id=(), stop_strings=stop, num_return_sequences=3
    )
    assert all(stop not in text for text in found.texts)
    ended = [ids for ids in found.new_ids if len(ids) < 10]
    assert ended
    assert all(tokenizer.decode(ids).endswith(stop) for ids in ended)


def test_several_draws_of_a_prompt_differ():
    found = generate(ours("llama"), [[3, 4], [5, 6]], do_sample=True, top_k=None, num_return_sequences=3, max_new_tokens=10)
    assert found.sequences.shape[0] == 6
    assert found.sequences[:, :2].tolist() == [[3, 4]] * 3 + [[5, 6]] * 3
    assert len({tuple(row) for row in found.new_ids}) == 6


@pytest.mark.parametrize("name", WRITERS)
def test_scores_are_kept_only_when_asked_for(name):
    assert generate(ours(name), [[3, 4]], max_new_tokens=3).scores is None
    found = generate(ours(name), [[3, 4]], max_new_tokens=3, return_scores=True, eos_token_id=())
    assert found.scores.shape == (1, 3, 60)
    assert found.scores.argmax(-1).tolist() == found.new_ids
    assert found.sequence_scores is None


def test_no_end_id_writes_to_the_limit():
    assert len(generate(ours("t5"), [[3, 4]], max_new_tokens=30, eos_token_id=()).new_ids[0]) == 30
    assert END not in generate(ours("t5"), [[3, 4]], max_new_tokens=30, min_new_tokens=30).new_ids[0]
