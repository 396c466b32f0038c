"""Every option has a range, and one that would have no effect is refused."""

import math

import pytest
from tiny_writers import ours

from modelzoo import generate
from modelzoo.errors import ConfigError
from modelzoo.generation import GenerationSettings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens=0 must be at least 1"),
        ({"max_new_tokens": 2.0}, r"max_new_tokens=2.0 must be an integer"),
        ({"max_new_tokens": True}, r"max_new_tokens=True must be an integer"),
        ({"min_new_tokens": -1}, r"min_new_tokens=-1 must be at least 0"),
        ({"min_new_tokens": 21}, r"min_new_tokens=21 is above max_new_tokens=20"),
        ({"do_sample": 1}, r"do_sample=1 must be True or False"),
        ({"do_sample": None}, r"do_sample=None must be True or False"),
        ({"prepack": "yes"}, r"prepack='yes' must be True or False"),
        ({"do_sample": True, "temperature": 0.0}, r"temperature=0.0 must be above 0; .* leave out do_sample"),
        ({"do_sample": True, "temperature": math.nan}, r"temperature=nan must be a finite number"),
        ({"do_sample": True, "temperature": "hot"}, r"temperature='hot' must be a finite number"),
        ({"do_sample": True, "top_k": 0}, r"top_k=0 must be at least 1"),
        ({"do_sample": True, "top_p": 0.0}, r"top_p=0.0 must be above 0 and at most 1"),
        ({"do_sample": True, "top_p": 1.1}, r"top_p=1.1 must be above 0 and at most 1"),
        ({"do_sample": True, "min_p": -0.1}, r"min_p=-0.1 must lie in 0 to 1"),
        ({"do_sample": True, "seed": -1}, r"seed=-1 must be at least 0"),
        ({"do_sample": True, "seed": 2**63}, r"seed=9223372036854775808 must be at most 9223372036854775807"),
        ({"repetition_penalty": 0}, r"repetition_penalty=0 must be above 0"),
        ({"num_beams": 0}, r"num_beams=0 must be at least 1"),
        ({"num_beams": 2, "do_sample": True}, r"do_sample=True with num_beams=2"),
        ({"num_beams": 2, "num_return_sequences": 3}, r"num_return_sequences=3 is above num_beams=2"),
        ({"num_beams": 2, "early_stopping": "soon"}, r"early_stopping='soon' is not known"),
        ({"num_beams": 2, "length_penalty": math.inf}, r"length_penalty=inf must be a finite number"),
        ({"num_beams": 2, "return_scores": True}, r"return_scores=True with beams"),
        ({"num_return_sequences": 2}, r"num_return_sequences=2: the best token each time gives one text"),
        ({"eos_token_id": -4}, r"eos_token_id=-4 must be at least 0"),
        ({"eos_token_id": [3, "x"]}, r"eos_token_id='x' must be an integer"),
        ({"pad_token_id": -1}, r"pad_token_id=-1 must be at least 0"),
        ({"stop_strings": ["a", ""]}, r"stop_strings: '' is no text"),
        ({"temperature": 0.5}, r"temperature=0.5 has no effect without do_sample=True"),
        ({"top_k": 3}, r"top_k=3 has no effect without do_sample=True"),
        ({"top_p": 0.5}, r"top_p=0.5 has no effect without do_sample=True"),
        ({"min_p": 0.5}, r"min_p=0.5 has no effect without do_sample=True"),
        ({"seed": 5}, r"seed=5 has no effect without do_sample=True"),
        ({"length_penalty": 0.5}, r"length_penalty=0.5 has no effect without num_beams above 1"),
        ({"early_stopping": True}, r"early_stopping=True has no effect without num_beams above 1"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_range(options, message):
    with pytest.raises(ConfigError, match=message):
        GenerationSettings(**options)


def test_one_id_or_text_is_as_good_as_a_list_of_one():
    assert GenerationSettings(eos_token_id=4, stop_strings="a") == GenerationSettings(eos_token_id=[4], stop_strings=["a"])
    assert GenerationSettings(eos_token_id=()).eos_ids == ()
    assert GenerationSettings().eos_ids is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 5}, r"max_tokens: is no option of generation; did you mean max_new_tokens\?"),
        ({"zzz": 5}, r"zzz: is no option of generation; there are max_new_tokens, "),
        ({"settings": GenerationSettings(), "do_sample": True}, r"settings and do_sample were given"),
        ({"eos_token_id": [1, 60]}, r"eos_token_id=60 is not in 0 to 59 \(vocab_size=60\)"),
        ({"pad_token_id": 99}, r"pad_token_id=99 is not in 0 to 59"),
    ],
)
def test_a_call_refuses_options_that_it_cannot_use(options, message):
    with pytest.raises(ConfigError, match=message):
        generate(ours("gpt2"), [[3, 4]], **options)
