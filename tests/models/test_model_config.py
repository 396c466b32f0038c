import dataclasses

import pytest
from transformers import BertConfig as TheirBertConfig
from transformers import RobertaConfig as TheirRobertaConfig

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.roberta import Roberta, RobertaConfig, XlmRobertaConfig

CONFIGS = [BertConfig, RobertaConfig, XlmRobertaConfig]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_cannot_be_changed(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().hidden_size = 3
    with pytest.raises((AttributeError, TypeError)):
        config().hiden_size = 3


@pytest.mark.parametrize("config", CONFIGS)
def test_a_misspelt_field_is_refused(config):
    with pytest.raises(TypeError, match="hiden_size"):
        config(hiden_size=3)


def test_the_defaults_are_those_of_the_base_checkpoints():
    read = converter_for("bert").read_config(TheirBertConfig().to_dict())
    assert BertConfig().values() == BertConfig(**read | {"label_names": None}).values()
    base = TheirRobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
    read = converter_for("roberta").read_config(base.to_dict())
    assert RobertaConfig().values() == RobertaConfig(**read | {"label_names": None}).values()
    assert XlmRobertaConfig().values() == RobertaConfig(vocab_size=250002).values()


def test_values_hold_every_field_but_the_source():
    config = BertConfig(source={"model_type": "bert"})
    assert set(config.values()) == {each.name for each in dataclasses.fields(config)} - {"source"}
    assert BertConfig(**config.values()) == dataclasses.replace(config, source=None)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 770}, r"num_heads=12 does not divide hidden_size=770; use (10|11|14) heads, say"),
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"hidden_size": -8}, "hidden_size=-8 must be at least 1"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"intermediate_size": 0}, "intermediate_size=0 must be at least 1"),
        ({"max_positions": 0}, "max_positions=0 must be at least 1"),
        ({"type_vocab_size": 0}, "type_vocab_size=0 must be at least 1"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"num_labels": 0}, "num_labels=0 must be at least 1"),
        ({"hidden_dropout": 1.0}, "hidden_dropout=1.0 must lie in 0 to 1, 1 excluded"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1 must lie in 0 to 1"),
        ({"classifier_dropout": 2.0}, "classifier_dropout=2.0 must lie in 0 to 1"),
        ({"hidden_dropout": float("nan")}, "hidden_dropout=nan must lie in 0 to 1"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 must be greater than 0"),
        ({"norm_eps": float("nan")}, "norm_eps=nan must be greater than 0"),
        ({"initializer_range": -0.02}, "initializer_range=-0.02 must be 0 or more"),
        ({"activation": "gelu_now"}, "activation='gelu_now' is not known; did you mean gelu_new?"),
        ({"pad_token_id": 500000}, "pad_token_id=500000 is not below vocab_size="),
        ({"pad_token_id": -1}, "pad_token_id=-1 is not below vocab_size="),
        ({"label_names": ("yes", "no", "maybe")}, "3 label_names were given for num_labels=2; give one a label"),
    ],
)
def test_an_impossible_field_is_named(config, fields, message):
    with pytest.raises(ConfigError, match=message):
        config(**fields)


def test_robertas_positions_begin_after_the_padding_id():
    with pytest.raises(ConfigError, match="max_positions=2 leaves no position after pad_token_id=1; use at least 3"):
        RobertaConfig(max_positions=2)
    with pytest.raises(ConfigError, match="pad_token_id=None: RoBERTa counts positions from it; give the id of the padding token"):
        RobertaConfig(pad_token_id=None)


def test_the_dropout_before_a_classifier_is_its_own_or_the_hidden_one():
    assert BertConfig(hidden_dropout=0.3).head_dropout == 0.3
    assert BertConfig(hidden_dropout=0.3, classifier_dropout=0.0).head_dropout == 0.0


def test_another_familys_config_and_an_unknown_task_are_refused():
    with pytest.raises(ConfigError, match="Bert takes a BertConfig, not a RobertaConfig"):
        Bert.from_config(RobertaConfig())
    with pytest.raises(ConfigError, match="task='clasification' is not one of Bert's tasks; use base, masked_lm, classification"):
        Bert.from_config(BertConfig(), "clasification")
    with pytest.raises(ConfigError, match="task='causal_lm' is not one of Roberta's tasks"):
        Roberta.from_config(RobertaConfig(), "causal_lm")
