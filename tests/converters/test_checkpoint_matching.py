"""Every disagreement between a model and a file is found, in one error, with key, expected and found."""

import pytest
import torch

from modelzoo.converters import Match, TensorInfo, converter_for, match
from modelzoo.converters.matching import raise_if_unfit
from modelzoo.errors import CheckpointError

LAYERS = 2
FLOAT = torch.float32


def model(task: str = "classification", layers: int = LAYERS, **options: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of a BERT whose matrices are all 4 x 4."""
    groups = converter_for("bert").weights(task, **options).expected({"layer": layers})
    return {name: (4,) if name.endswith("bias") or "norm" in name else (4, 4) for group in groups for name in group.ours}


def file(task: str = "classification", layers: int = LAYERS, **options: bool) -> dict[str, TensorInfo]:
    """The file of that model."""
    mapping = converter_for("bert").weights(task, **options)
    shapes = model(task, layers, **options)
    names = {
        theirs: ours for group in mapping.expected({"layer": layers}) for theirs, ours in zip(group.theirs, group.ours, strict=True)
    }
    return {mapping.written(theirs): TensorInfo(shapes[ours], FLOAT, "model.safetensors") for theirs, ours in names.items()}


def fit(held: dict[str, TensorInfo], task: str = "classification", **options) -> Match:
    new_parts = converter_for("bert").new_parts
    return match(converter_for("bert").weights(task), model(task), held, new_parts=new_parts, **options)


def message(result: Match) -> str:
    with pytest.raises(CheckpointError) as error:
        raise_if_unfit(result, "folder")
    return str(error.value)


def test_a_complete_file_fits() -> None:
    result = fit(file())
    assert (result.problems, result.new, result.ignored, result.equal) == ([], [], [], [])
    assert len(result.reads) == len(model())


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.pop(QUERY), ["model.safetensors", QUERY, "[4, 4]", "found nothing"]),
        (lambda f: f.update({"bert.extra.weight": f[QUERY]}), ["bert.extra.weight", "no such key", "float32 [4, 4]"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 5), FLOAT, "a.safetensors")}), ["a.safetensors", QUERY, "[4, 4]", "[4, 5]"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 4), torch.int8, "a")}), [QUERY, "float16", "int8", "never cast"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 4), torch.int64, "a")}), [QUERY, "int64"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 4), torch.bool, "a")}), [QUERY, "bool"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 4), torch.float8_e4m3fn, "a")}), [QUERY, "float8_e4m3fn"]),
        (lambda f: f.update({QUERY: TensorInfo((4, 4), torch.float64, "a")}), [QUERY, "float64", "dtype="]),
        (lambda f: f.update({QUERY.removeprefix("bert."): f[QUERY]}), [QUERY.removeprefix("bert."), "found also as", QUERY]),
        (
            lambda f: f.update({"bert.embeddings.LayerNorm.gamma": f["bert.embeddings.LayerNorm.weight"]}),
            ["LayerNorm.gamma", "found also as", "LayerNorm.weight"],
        ),
        (lambda f: f.update({"bert.gamma": f[QUERY]}), ["bert.gamma", "no such key"]),
    ],
    ids=range(11),
)
def test_each_fault_is_named_with_key_expected_and_found(change, words: list[str]) -> None:
    held = file()
    change(held)
    text = message(fit(held))
    assert "1 problem" in text
    assert all(word in text for word in words), text


def test_all_faults_stand_in_one_error_of_at_most_twenty_lines() -> None:
    held = file()
    for key in list(held)[:15]:
        held[key] = TensorInfo((9,), torch.int8, "model.safetensors")
    text = message(fit(held))
    assert "30 problems" in text
    assert "and 10 more" in text
    assert text.count("\n") <= 23


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."])
@pytest.mark.parametrize("inside", [False, True])
def test_wrapper_prefixes_are_refused_by_name(wrapper: str, inside: bool) -> None:
    moved = {(key.replace("layer.0.", f"layer.0.{wrapper}") if inside else wrapper + key): info for key, info in file().items()}
    text = message(fit(moved))
    assert "1 problem" in text
    assert f"wrapper prefix '{wrapper}'" in text
    assert (f"of {len(moved)} keys") in text


def test_adapter_keys_ask_for_the_adapter() -> None:
    held = file() | {f"{QUERY.removesuffix('weight')}lora_A.weight": TensorInfo((2, 4), FLOAT, "adapter_model.safetensors")}
    text = message(fit(held))
    assert "1 problem" in text
    assert all(word in text for word in ("lora_A", "adapter_model.safetensors", "Attach the adapter first"))


@pytest.mark.parametrize(("held", "wanted"), [(1, 2), (3, 2)])
def test_a_config_with_other_layers_is_the_hint(held: int, wanted: int) -> None:
    text = message(fit(file(layers=held)))
    first = "bert.encoder.layer." + str(min(held, wanted))
    assert f"The config says {wanted} layers, the file has {held}; the first key that differs is {first}" in text


def test_another_prefix_is_the_hint() -> None:
    text = message(fit({f"model.{key}": info for key, info in file().items()}))
    assert "prefix 'model.'" in text
    text = message(fit({key.replace("bert.", "roberta."): info for key, info in file().items()}))
    assert "prefix 'roberta.'" in text


def test_a_file_of_something_else_is_the_hint() -> None:
    text = message(fit({"conv.kernel": TensorInfo((3, 3), FLOAT, "model.safetensors")}))
    assert "No key of the file is one of this family's; its first key is conv.kernel" in text


def test_files_without_the_prefix_are_read() -> None:
    result = fit({key.removeprefix("bert."): info for key, info in file().items()})
    assert result.problems == []


@pytest.mark.parametrize("task", ["classification", "token_classification", "question_answering"])
@pytest.mark.parametrize("source", ["base", "masked_lm"])
def test_a_head_that_the_file_lacks_is_new_and_the_other_head_is_left_out(task: str, source: str) -> None:
    result = fit(file(source), task)
    assert result.problems == []
    assert {"head.output.weight", "head.output.bias"} <= set(result.new)
    assert all(name.startswith(("head.", "pooler.")) for name in result.new)
    left_out = {key for key, _ in result.ignored}
    assert left_out == {
        key for key in file(source) if key.startswith(("cls.", "pooler")) and not (task == "classification" and "pooler" in key)
    }


def test_a_missing_backbone_is_an_error_though_the_head_is_there() -> None:
    held = {key: info for key, info in file().items() if key.startswith("classifier")}
    assert "bert.embeddings.word_embeddings.weight" in message(fit(held))


def test_half_a_head_is_an_error() -> None:
    held = file()
    del held["classifier.bias"]
    assert "classifier.bias: expected a tensor of shape [4], found nothing" in message(fit(held))


def test_a_head_of_another_size_says_how_to_start_a_new_one() -> None:
    held = file()
    held["classifier.weight"] = TensorInfo((6, 4), FLOAT, "model.safetensors")
    held["classifier.bias"] = TensorInfo((6,), FLOAT, "model.safetensors")
    text = message(fit(held))
    assert "classifier.weight: expected shape [4, 4], found [6, 4]" in text
    assert "start a new head" in text
    fresh = fit(held, fresh={"head.": "a new head was asked for"})
    assert fresh.problems == []
    assert fresh.new == ["head.output.weight", "head.output.bias"]
    assert {key for key, _ in fresh.ignored} == {"classifier.weight", "classifier.bias"}


def test_float64_is_read_when_the_dtype_is_stated() -> None:
    held = file()
    held[QUERY] = TensorInfo((4, 4), torch.float64, "model.safetensors")
    assert fit(held, allow_float64=True).problems == []


def test_second_names_of_a_tied_head() -> None:
    decoder, word = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    held = file("masked_lm") | {decoder: TensorInfo((4, 4), FLOAT, "model.safetensors")}
    result = fit(held, "masked_lm")
    assert result.problems == []
    assert result.equal == [(decoder, word)]
    assert result.ignored == [(decoder, f"second name of {word}")]
    del held[word]
    result = fit(held, "masked_lm")
    assert result.problems == []
    assert any(keys == (decoder,) and group.ours == ("embeddings.token.weight",) for group, keys in result.reads)


def test_an_untied_head_reads_the_bias_that_transformers_uses() -> None:
    mapping = converter_for("bert").weights("masked_lm", tied=False)
    held = file("masked_lm", tied=False)
    both = held | {"cls.predictions.bias": TensorInfo((4,), FLOAT, "model.safetensors")}
    result = match(mapping, model("masked_lm", tied=False), both)
    assert (result.problems, result.equal) == ([], [])
    assert any(keys == ("cls.predictions.decoder.bias",) for _, keys in result.reads)
    old = {key: info for key, info in both.items() if key != "cls.predictions.decoder.bias"}
    result = match(mapping, model("masked_lm", tied=False), old)
    assert result.problems == []
    assert any(keys == ("cls.predictions.bias",) for _, keys in result.reads)
