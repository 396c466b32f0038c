"""Folders of transformers are loaded, and folders of ours are loaded by transformers, with the same logits and the same bits."""

import json

import pytest
import torch
import transformers
from reference_models import FAMILIES, MASKS, TASKS, comparable, inputs, ours_like, reference

from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError, SaveError
from modelzoo.models.auto import from_pretrained, model_class


def saved(folder, family="bert", task="classification", **options):
    theirs = reference(family, task, **options)
    theirs.save_pretrained(folder)
    return theirs


def assert_equal_logits(ours, theirs, family, tolerance=1e-5):
    batch = inputs(family, MASKS["right"])
    for mine, other in zip(
        comparable(ours(**batch), batch["attention_mask"]), comparable(theirs(**batch), batch["attention_mask"]), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_goes_from_transformers_to_us_and_back(tmp_path, family, task):
    theirs = saved(tmp_path / "theirs", family, task)
    ours = from_pretrained(tmp_path / "theirs")
    assert isinstance(ours, model_class(family))
    assert ours.task == task
    assert not ours.training
    assert ours.load_report.new == ()
    assert_equal_logits(ours, theirs, family)
    ours.save_pretrained(tmp_path / "ours")
    kind = getattr(transformers, converter_for(family).architectures[task])
    again, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = theirs.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_made_here_is_loaded_by_transformers(tmp_path, family):
    ours = ours_like(reference(family, "classification"), family, "classification")
    assert ours.config.source is None
    ours.save_pretrained(tmp_path / "ours")
    theirs = getattr(transformers, converter_for(family).architectures["classification"]).from_pretrained(tmp_path / "ours")
    assert_equal_logits(ours, theirs.eval(), family)
    assert_equal_logits(from_pretrained(tmp_path / "ours"), theirs, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_gets_a_fresh_head_with_the_configs_spread(tmp_path, family):
    saved(tmp_path, family, "masked_lm")
    torch.manual_seed(0)
    model = from_pretrained(tmp_path, task="classification", label_names=["no", "perhaps", "yes", "never"])
    assert model.config.num_labels == 4
    assert model.config.label_names == ("no", "perhaps", "yes", "never")
    assert "head.output.weight" in model.load_report.new
    assert abs(model.head.output.weight.std().item() - 0.02) < 0.008
    assert not model.head.output.bias.any()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    torch.manual_seed(0)
    assert torch.equal(from_pretrained(tmp_path, task="classification", num_labels=4).head.output.weight, model.head.output.weight)


def test_another_number_of_labels_makes_the_head_fresh_and_the_same_keeps_it(tmp_path):
    theirs = saved(tmp_path)
    same = from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(same.head.output.weight, theirs.classifier.weight)
    named = from_pretrained(tmp_path, label_names=("a", "b", "c"))
    assert torch.equal(named.head.output.weight, theirs.classifier.weight)
    assert named.config.label_names == ("a", "b", "c")
    other = from_pretrained(tmp_path, num_labels=5)
    assert other.head.output.weight.shape == (5, 16)
    assert set(other.load_report.new) == {"head.output.weight", "head.output.bias"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_labels": 2, "label_names": ["a", "b", "c"]}, "3 label_names were given with num_labels=2; give one of the two"),
        ({"label_names": ["a", "b", "a"]}, "label_names: 'a' stands there twice"),
        ({"task": "causal_lm"}, "task='causal_lm' is not one of Bert's tasks"),
        ({"dtype": "float3"}, "dtype='float3' is not known; use 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"task": "masked_lm", "num_labels": 3}, "num_labels=3 was given for task='masked_lm', which has no labels of its own"),
        ({"task": "question_answering", "label_names": ["a", "b"]}, "label_names was given for task='question_answering'"),
        ({"dropout": 1.5}, "hidden_dropout=1.5 must lie in 0 to 1"),
    ],
)
def test_options_that_contradict_are_refused(tmp_path, options, message):
    saved(tmp_path)
    with pytest.raises(ConfigError, match=message):
        from_pretrained(tmp_path, **options)


def test_another_familys_folder_is_refused_by_name(tmp_path):
    saved(tmp_path, "roberta")
    with pytest.raises(
        ConfigError, match=r"config.json: model_type: expected 'bert' for Bert, found 'roberta'; use modelzoo.from_pretrained"
    ):
        model_class("bert").from_pretrained(tmp_path)


def test_weights_that_do_not_fit_change_nothing_and_are_named(tmp_path):
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"expected 2 layers, as the weights have, found num_layers=3"):
        from_pretrained(tmp_path)


def test_dropout_replaces_every_probability(tmp_path):
    saved(tmp_path)
    model = from_pretrained(tmp_path, dropout=0.25)
    assert (model.config.hidden_dropout, model.config.attention_dropout, model.config.classifier_dropout) == (0.25, 0.25, 0.25)
    assert model.encoder.layers[0].self_attention.sublayer.dropout == 0.25
    assert model.head.dropout.p == 0.25


@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16", "auto"])
def test_parameters_have_the_dtype_asked_for(tmp_path, dtype):
    saved(tmp_path)
    model = from_pretrained(tmp_path, dtype=dtype)
    wanted = {"auto": torch.float32, "float16": torch.float16}.get(dtype, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {wanted}


def test_an_existing_folder_is_kept_unless_told(tmp_path):
    saved(tmp_path / "theirs")
    model = from_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    with pytest.raises(SaveError, match="ours"):
        model.save_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "ours", overwrite=True)
    assert torch.equal(from_pretrained(tmp_path / "ours").head.output.weight, model.head.output.weight)
