"""What a model refuses at its door, with the row, the place and the value."""

import pytest
import torch
from reference_models import FAMILIES, inputs

from modelzoo.errors import DataError
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.roberta import Roberta, RobertaConfig

TINY = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 8,
    "max_positions": 18,
    "num_labels": 3,
}


def bert(task="base"):
    return Bert.from_config(BertConfig(**TINY), task)


def roberta(task="base"):
    return Roberta.from_config(RobertaConfig(**TINY), task)


def ids(rows=2, width=5):
    return torch.randint(2, 40, (rows, width), generator=torch.Generator().manual_seed(0))


def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize("value", [40, 41, 100000, -1, -100])
@pytest.mark.parametrize("build", [bert, roberta])
def test_an_id_outside_the_vocabulary_is_named(build, value):
    message = rf"input_ids: row 1, position 3: id {value} is not in 0 to 39 \(vocab_size=40\); use the tokenizer that belongs to"
    with pytest.raises(DataError, match=message):
        build()(changed(ids(), (1, 3), value))


def test_an_id_outside_the_vocabulary_is_named_even_at_padding():
    with pytest.raises(DataError, match="row 0, position 4: id 50"):
        bert()(changed(ids(), (0, 4), 50), attention_mask=torch.tensor([[1, 1, 1, 1, 0], [1] * 5]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ids()[0], r"input_ids must be \(batch, tokens\), found shape \(5,\); add the missing dimension"),
        (ids()[None], r"input_ids must be \(batch, tokens\), found shape \(1, 2, 5\)"),
        (ids().float(), r"input_ids must be integers, found torch.float32; convert them with .long\(\)"),
        (ids().bool(), r"input_ids must be integers, found torch.bool"),
        (ids(0), r"input_ids is empty, shape \(0, 5\); give at least one row with one token"),
        (ids(2, 0), r"input_ids is empty, shape \(2, 0\)"),
    ],
)
def test_ids_of_another_form_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        bert()(given)


def test_token_types_of_a_model_with_one_type_are_refused():
    types = changed(torch.zeros(2, 5, dtype=torch.long), (1, 2), 1)
    message = r"token_type_ids: row 1, position 2: id 1 is not in 0 to 0 \(type_vocab_size=1\); leave them out"
    with pytest.raises(DataError, match=message):
        roberta()(ids(), token_type_ids=types)
    assert torch.equal(roberta_same(types * 0), roberta_same(None))


def roberta_same(types):
    torch.manual_seed(0)
    return roberta().eval()(ids(), token_type_ids=types).last_hidden_state


@pytest.mark.parametrize("mask", [None, torch.ones(1, 18)])
def test_a_sequence_longer_than_robertas_positions_is_refused_with_the_reason(mask):
    message = r"18 tokens, limit 16 \(18 positions, padding_idx 1\); truncate the text or set data.max_length=16"
    with pytest.raises(DataError, match=message):
        roberta()(ids(1, 18), attention_mask=mask)
    assert roberta().max_length == 16
    assert roberta()(ids(1, 16)).last_hidden_state.isfinite().all()


def test_a_sequence_longer_than_berts_positions_is_refused():
    with pytest.raises(DataError, match=r"19 tokens, limit 18 \(18 positions\); truncate the text or set data.max_length=18"):
        bert()(ids(1, 19))
    assert bert().max_length == 18
    assert bert()(ids(1, 18)).last_hidden_state.isfinite().all()


def test_padding_does_not_count_towards_the_limit():
    mask = torch.tensor([[1] * 16 + [0] * 6])
    batch = ids(1, 22).masked_fill(mask == 0, 1)
    assert roberta()(batch, attention_mask=mask).last_hidden_state.shape == (1, 22, 8)
    assert bert()(batch, attention_mask=mask).last_hidden_state.shape == (1, 22, 8)


@pytest.mark.parametrize("value", [18, -1])
def test_a_position_outside_the_table_is_named(value):
    places = changed(torch.arange(5).expand(2, 5), (0, 4), value)
    message = rf"position_ids: row 0, position 4: id {value} is not in 0 to 17 \(max_positions=18\); leave them out"
    for build in (bert, roberta):
        with pytest.raises(DataError, match=message):
            build()(ids(), position_ids=places)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("attention_mask", torch.ones(2, 4)),
        ("attention_mask", torch.ones(1, 5)),
        ("attention_mask", torch.ones(2, 5, 5)),
        ("token_type_ids", torch.zeros(2, 4, dtype=torch.long)),
        ("token_type_ids", torch.zeros(1, 5, dtype=torch.long)),
        ("position_ids", torch.zeros(2, 4, dtype=torch.long)),
        ("position_ids", torch.zeros(3, 5, dtype=torch.long)),
    ],
)
def test_what_goes_with_the_ids_has_their_shape(name, given):
    shape = str(tuple(given.shape)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DataError, match=rf"{name} must have the shape of input_ids, \(2, 5\), found {shape}"):
        bert()(ids(), **{name: given})


@pytest.mark.parametrize("value", [3, -1, -99, 7])
def test_a_class_out_of_range_is_named(value):
    with pytest.raises(DataError, match=rf"labels: row 1: {value} is not in 0 to 2; the one label that is ignored is -100"):
        bert("classification")(ids(), labels=torch.tensor([0, value]))
    with pytest.raises(DataError, match=rf"labels: row 1, position 2: {value} is not in 0 to 2"):
        bert("token_classification")(ids(), labels=changed(torch.zeros(2, 5, dtype=torch.long), (1, 2), value))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("value", [40, -1])
def test_a_masked_token_out_of_range_is_named(value, is_training):
    labels = changed(torch.full((2, 5), -100), (0, 1), value)
    with pytest.raises(DataError, match=rf"labels: row 0, position 1: {value} is not in 0 to 39"):
        bert("masked_lm").train(is_training)(ids(), labels=labels)


@pytest.mark.parametrize("value", [5, -1])
def test_an_answer_outside_the_text_is_named(value):
    fine, wrong = torch.tensor([0, 1]), torch.tensor([0, value])
    for name, given in (("start_positions", (wrong, fine)), ("end_positions", (fine, wrong))):
        with pytest.raises(DataError, match=rf"{name}: row 1: {value} is not in 0 to 4; the one label that is ignored is -100"):
            bert("question_answering")(ids(), start_positions=given[0], end_positions=given[1])


def test_an_answer_in_padding_is_named():
    mask = torch.tensor([[1] * 5, [0, 1, 1, 1, 1]])
    with pytest.raises(
        DataError, match="end_positions: row 1: column 0 is padding, which holds no answer; give the column of a token"
    ):
        bert("question_answering")(ids(), mask, start_positions=torch.tensor([0, 1]), end_positions=torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("classification", {"labels": torch.zeros(2, 1, dtype=torch.long)}, r"labels must have shape \(2,\), found \(2, 1\)"),
        (
            "classification",
            {"labels": torch.zeros(2)},
            r"labels must be integers, found torch.float32; convert them with .long\(\)",
        ),
        ("token_classification", {"labels": torch.zeros(2, dtype=torch.long)}, r"labels must have shape \(2, 5\), found \(2,\)"),
        ("masked_lm", {"labels": torch.zeros(2, 4, dtype=torch.long)}, r"labels must have shape \(2, 5\), found \(2, 4\)"),
        (
            "question_answering",
            {"labels": torch.zeros(2, dtype=torch.long)},
            "for question_answering, which takes start_positions and end_positions",
        ),
        (
            "question_answering",
            {"start_positions": torch.zeros(2, dtype=torch.long)},
            "start_positions and end_positions belong together",
        ),
        ("base", {"labels": torch.zeros(2, dtype=torch.long)}, "labels were given to a model for base, which takes no labels"),
        ("base", {"start_positions": torch.zeros(2, dtype=torch.long)}, "a model for base, which takes no labels"),
        ("classification", {"end_positions": torch.zeros(2, dtype=torch.long)}, "a model for classification, which takes labels"),
    ],
)
def test_labels_of_another_task_or_shape_are_refused(task, given, message):
    with pytest.raises(DataError, match=message):
        bert(task)(ids(), **given)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_batches_of_these_tests_are_within_range(family):
    assert inputs(family, None)["input_ids"].max() < 40
