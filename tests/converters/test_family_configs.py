"""A config.json is read with transformers' own meaning, or refused by field and value; it comes back equal."""

import json
import time
from typing import Any, get_args

import pytest
import torch

from modelzoo.converters import FamilyConverter, Task, converter_for
from modelzoo.converters.names import ACTIVATIONS
from modelzoo.errors import ConfigError
from modelzoo.layers.activation import ACTIVATIONS as LAYER_ACTIVATIONS

FAMILIES = ("bert", "roberta", "xlm-roberta")
TASKS = ("base", "masked_lm", "classification", "token_classification", "question_answering")


def hf_config(family: str, **changes: object) -> dict[str, Any]:
    """What transformers writes for its own default config."""
    from transformers import AutoConfig

    return json.loads(AutoConfig.for_model(family, **changes).to_json_string(use_diff=False))


def ours(family: str, source: dict[str, Any], task: str = "base") -> dict[str, Any]:
    return converter_for(family).read_config(source, task)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_field_means_what_transformers_means(family: str) -> None:
    from transformers import AutoConfig

    reference = AutoConfig.for_model(family)
    values = ours(family, {"model_type": family})
    for field in converter_for(family).table.fields:
        assert values[field.ours] == getattr(reference, field.theirs), field.theirs
    assert values["num_labels"] == reference.num_labels
    assert values["label_names"] is None


def test_activations_are_those_of_the_layers_and_all_known_to_transformers() -> None:
    from transformers.activations import ACT2FN

    assert set(ACTIVATIONS) == set(LAYER_ACTIVATIONS)
    assert set(ACTIVATIONS) <= set(ACT2FN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_architectures_are_classes_of_transformers(family: str, task: str) -> None:
    import transformers

    converter = converter_for(family)
    name = converter.architectures[task]
    assert getattr(transformers, name).config_class.model_type == family
    assert converter.default_task({"architectures": [name]}) == task
    assert all(hasattr(transformers, other) for other in converter.also)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "num_labels": 5, "pad_token_id": 3, "classifier_dropout": 0.3}],
)
def test_an_untouched_config_comes_back_equal(family: str, task: str, changes: dict[str, object]) -> None:
    converter = converter_for(family)
    if task == "question_answering":
        changes = changes | {"num_labels": 2}  # a span has two ends
    source = hf_config(family, **changes) | {"architectures": [converter.architectures[task]], "dtype": "float32", "anything": [1]}
    back = converter.write_config(ours(family, source, task), source, task, torch.float32)
    assert back == source


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_a_config_made_here_is_read_by_transformers(family: str, task: str) -> None:
    from transformers import AutoConfig

    converter = converter_for(family)
    values = ours(family, {"model_type": family}, task)
    values |= {"hidden_size": 24, "num_layers": 3, "activation": "relu", "norm_eps": 1e-6, "classifier_dropout": 0.25}
    values |= {"num_labels": 3, "label_names": ("a", "b", "c")} if "classification" in task else {}
    written = json.loads(json.dumps(converter.write_config(values, None, task, torch.bfloat16)))
    reference = AutoConfig.for_model(**written)
    for field in converter.table.fields:
        assert getattr(reference, field.theirs) == values[field.ours], field.theirs
    assert reference.architectures == [converter.architectures[task]]
    assert reference.dtype == torch.bfloat16
    assert reference.num_labels == values["num_labels"]
    assert ours(family, written, task) == values


@pytest.mark.parametrize(
    ("labels", "names", "count"),
    [
        ({}, None, 2),
        ({"num_labels": 4}, None, 4),
        ({"_num_labels": 9}, None, 9),
        ({"num_labels": None}, None, 2),
        ({"id2label": None}, None, 2),
        ({"id2label": {"0": "x", "1": "y", "2": "z"}}, ("x", "y", "z"), 3),
        ({"id2label": {"1": "y", "0": "x"}, "num_labels": 2, "_num_labels": 9}, ("x", "y"), 2),
        ({"id2label": {str(i): f"L{i}" for i in range(12)}}, tuple(f"L{i}" for i in range(12)), 12),
    ],
    ids=range(8),
)
def test_labels_are_counted_as_transformers_counts_them(labels: dict[str, Any], names: tuple[str, ...] | None, count: int) -> None:
    from transformers import BertConfig

    source = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]} | labels
    values = ours("bert", source, "classification")
    assert (values["label_names"], values["num_labels"]) == (names, count)
    if labels not in ({"_num_labels": 9}, {"num_labels": None}):  # transformers has forgotten the one and fails on the other
        assert BertConfig(**labels).num_labels == count
    assert converter_for("bert").write_config(values, source, "classification", torch.float32) == source


def test_new_labels_replace_the_old_ones_everywhere() -> None:
    source = {"model_type": "bert", "num_labels": 1, "_num_labels": 9, "id2label": {"0": "a"}, "label2id": {"a": 0}}
    values = ours("bert", source, "classification") | {"num_labels": 3, "label_names": None}
    written = converter_for("bert").write_config(values, source, "classification", torch.float32)
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert written["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert not {"num_labels", "_num_labels"} & written.keys()
    values = values | {"num_labels": 2, "label_names": ("no", "yes")}
    assert converter_for("bert").write_config(values, source, "classification", torch.float32)["label2id"] == {"no": 0, "yes": 1}


def test_labels_of_another_task_stay_in_the_config() -> None:
    source = {"model_type": "bert", "architectures": ["BertModel"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    converter = converter_for("bert")
    for task in ("base", "masked_lm"):
        written = converter.write_config(ours("bert", source, task), source, task, torch.float32)
        assert written["id2label"] == source["id2label"]
    values = ours("bert", source, "question_answering")
    assert values["num_labels"] == 2
    assert "id2label" not in converter.write_config(values, source, "question_answering", torch.float32)


def test_only_what_changed_is_written() -> None:
    source = {"model_type": "bert", "architectures": ["BertModel"], "torch_dtype": "float32", "hidden_dropout_prob": 0.1}
    values = ours("bert", source) | {"hidden_dropout": 0.0}
    written = converter_for("bert").write_config(values, source, "classification", torch.float16)
    assert written == source | {
        "architectures": ["BertForSequenceClassification"],
        "torch_dtype": "float16",
        "hidden_dropout_prob": 0.0,
    }


@pytest.mark.parametrize(
    ("before", "dtype", "after"),
    [
        ({}, torch.float32, {}),
        ({}, torch.float16, {"dtype": "float16"}),
        ({"torch_dtype": "float16"}, torch.float32, {"torch_dtype": "float32"}),
        ({"dtype": "float32"}, torch.bfloat16, {"dtype": "bfloat16"}),
        ({"dtype": None}, torch.float32, {"dtype": "float32"}),
    ],
    ids=range(5),
)
def test_the_config_states_the_files_dtype(before: dict[str, Any], dtype: torch.dtype, after: dict[str, Any]) -> None:
    source = {"model_type": "bert", "architectures": ["BertModel"]}
    written = converter_for("bert").write_config(ours("bert", source), source | before, "base", dtype)
    assert written == source | after


def test_a_missing_model_type_is_written() -> None:
    written = converter_for("bert").write_config(ours("bert", {}), {}, "base", torch.float32)
    assert written == {"model_type": "bert"}


SIZES = [
    f for f in converter_for("bert").table.fields if f.check(0) is not None and f.check(1) is None and isinstance(f.default, int)
]


@pytest.mark.parametrize("field", [f.theirs for f in SIZES if not isinstance(f.default, bool)])
@pytest.mark.parametrize("value", [0, -1, 2**31, 2_000_000_000, 1.5, 12.0, "12", None, True, [1], {}, 10**30], ids=str)
def test_sizes_that_are_none_are_refused_by_field_and_value(field: str, value: object) -> None:
    started = time.perf_counter()
    with pytest.raises(ConfigError) as error:
        ours("bert", {field: value})
    text = str(error.value)
    assert f"{field}: expected a whole number from 1 to" in text
    shown = {None: "null", True: "true"}.get(value, repr(value)) if not isinstance(value, list | dict) else repr(value)
    assert f"found {shown}" in text
    assert time.perf_counter() - started < 1


def test_sizes_are_the_seven_that_a_model_allocates() -> None:
    assert len(SIZES) == 7


def test_a_million_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers: expected a whole number from 1 to 4096, found 1000000"):
        ours("bert", {"num_hidden_layers": 10**6})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_act", "geluu", ["'geluu'", "did you mean gelu?", "quick_gelu"]),
        ("hidden_act", ["gelu"], ["['gelu']", "relu"]),
        ("position_embedding_type", "relative_key", ["'relative_key'", "'absolute'", "not built"]),
        ("is_decoder", True, ["true", "false", "decoder"]),
        ("add_cross_attention", True, ["true", "cross attention"]),
        ("is_encoder_decoder", True, ["true"]),
        ("pruned_heads", {"0": [1]}, ["{'0': [1]}", "pruned heads"]),
        ("hidden_dropout_prob", 1, ["0 to below 1", "found 1"]),
        ("attention_probs_dropout_prob", -0.1, ["-0.1"]),
        ("classifier_dropout", "x", ["or null", "'x'"]),
        ("layer_norm_eps", 0, ["above 0", "found 0"]),
        ("layer_norm_eps", float("nan"), ["nan"]),
        ("layer_norm_eps", float("inf"), ["inf"]),
        ("initializer_range", "0.02", ["'0.02'"]),
        ("pad_token_id", -1, ["token id", "found -1"]),
        ("tie_word_embeddings", "yes", ["true or false", "'yes'"]),
        ("tie_word_embeddings", 1, ["true or false", "found 1"]),
        ("id2label", ["a", "b"], ["object of label names", "['a', 'b']"]),
        ("id2label", {"0": "a", "2": "b"}, ["ids 0 to 1", "'2'"]),
        ("id2label", {"x": "a"}, ["ids 0 to 0", "'x'"]),
        ("id2label", {"0": None}, ["label 0", "null"]),
        ("num_labels", 7, ["found 7", "2, the length of id2label"]),
        ("num_labels", 0, ["whole number", "found 0"]),
        ("vocab_size", "9" * 100_000, ["vocab_size", "999..."]),
    ],
)
def test_values_that_are_not_built_are_refused_by_field_and_value(family: str, field: str, value: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        ours(family, {"id2label": {"0": "a", "1": "b"}, field: value})
    assert f"{field}: expected" in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert len(str(error.value)) < 1000


def test_all_faults_stand_in_one_error() -> None:
    with pytest.raises(ConfigError) as error:
        ours("bert", {"vocab_size": 0, "hidden_act": "x", "is_decoder": True, "layer_norm_eps": None})
    assert all(field in str(error.value) for field in ("vocab_size", "hidden_act", "is_decoder", "layer_norm_eps"))


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_other_losses_are_refused_where_they_matter(problem: str) -> None:
    with pytest.raises(ConfigError, match=f"problem_type: expected null or 'single_label_classification', found '{problem}'"):
        ours("bert", {"problem_type": problem}, "classification")
    assert ours("bert", {"problem_type": problem}, "base")["hidden_size"] == 768


def test_roberta_needs_a_padding_id_and_bert_does_not() -> None:
    assert ours("bert", {"pad_token_id": None})["pad_token_id"] is None
    with pytest.raises(ConfigError, match=r"pad_token_id: expected a token id .* found null"):
        ours("roberta", {"pad_token_id": None})
    assert ours("roberta", {"pad_token_id": 0})["pad_token_id"] == 0


def test_unknown_fields_are_kept_and_change_nothing() -> None:
    strange = {"_attn_implementation_internal": "flash", "__class__": "x", "auto_map": {"AutoModel": "evil.py"}, "a": {"b": [None]}}
    source = {"model_type": "bert", **strange}
    values = ours("bert", source)
    assert values == ours("bert", {})
    assert converter_for("bert").write_config(values, source, "base", torch.float32) == source


@pytest.mark.parametrize(
    ("model_type", "words"), [("bart", ["'bart'", "Did you mean bert?"]), ("swin", ["'swin'", "not built"]), (3, ["3"])]
)
def test_an_unknown_family_is_refused_with_the_known_ones(model_type: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        converter_for(model_type)
    assert all(word in str(error.value) for word in (*words, *FAMILIES))


def test_a_missing_family_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model_type: expected one of bert, roberta, .*, found nothing"):
        converter_for(None)


def test_a_config_of_another_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="model_type: expected 'bert', found 'roberta'"):
        ours("bert", {"model_type": "roberta"})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_task_is_refused_with_the_known_ones(family: str) -> None:
    converter: FamilyConverter = converter_for(family)
    other: Task = next(task for task in get_args(Task) if task not in converter.architectures)
    known = ", ".join(converter.architectures)
    with pytest.raises(ConfigError, match=rf"task='{other}' is not a task of {family}; use one of {known}"):
        converter.weights(other)
    with pytest.raises(ConfigError, match=r"task='sorting' is not a task; use one of base"):
        converter.require_task("sorting")


def test_an_unknown_architecture_asks_for_the_task() -> None:
    converter = converter_for("bert")
    with pytest.raises(ConfigError, match=r"BertForNextSentencePrediction\. Say what the model is for: task= one of base"):
        converter.default_task({"architectures": ["BertForNextSentencePrediction"]})
    assert converter.default_task({"architectures": ["BertForPreTraining"]}) == "masked_lm"
    assert converter.default_task({}) == "base"
    with pytest.raises(ConfigError, match="architectures: expected a list of class names or null, found 'BertModel'"):
        converter.default_task({"architectures": "BertModel"})
