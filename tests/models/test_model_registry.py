import pytest

from modelzoo.converters import converter_for, known_model_types
from modelzoo.errors import ConfigError
from modelzoo.models.auto import FAMILIES, model_class


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_names_itself_its_config_and_its_tasks(model_type):
    kind = model_class(model_type)
    assert kind.family == model_type
    assert set(kind.tasks) == set(converter_for(model_type).architectures)
    assert kind.config_class is model_class(model_type).config_class


def test_every_converter_has_a_family_and_every_family_a_converter():
    assert set(FAMILIES) == set(known_model_types())


def test_a_misspelt_model_type_is_named_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"model_type='robertta' is not known; did you mean 'roberta'\? known: bert, .*roberta"):
        model_class("robertta")


@pytest.mark.parametrize("model_type", ["zzz", None, 7, ["bert"]])
def test_an_unknown_model_type_is_named(model_type):
    with pytest.raises(ConfigError, match=r"model_type=.* is not known; .*known: bert, .*roberta"):
        model_class(model_type)
