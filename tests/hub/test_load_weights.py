"""Loading is strict, all or nothing, exact, and leaves memory that no file stands behind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.hub import LoadReport, ModelFacts, load_weights, read_config
from modelzoo.layers import skip_initialization
from modelzoo.models.bert import Bert
from modelzoo.models.model import Model
from modelzoo.models.roberta import Roberta

pytest_plugins = ["tiny_folders"]

Folders = Callable[..., Path]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
OUR_QUERY = "encoder.layers.1.self_attention.sublayer.query.weight"


def built(folder: Path, task: str | None = None, *, device: str = "cpu", **changes: Any) -> tuple[Model, ModelFacts]:
    """A model of a folder's config with nothing loaded, and its facts."""
    source = read_config(folder)
    converter = converter_for(source["model_type"])
    family = {"bert": Bert, "roberta": Roberta}[source["model_type"]]
    task = task or converter.default_task(source)
    values = converter.read_config(source, task) | changes
    with torch.device(device), skip_initialization():
        model = family(family.config_class(**values, source=source), task)
    for parameter in model.parameters():
        if device != "meta":
            torch.nn.init.constant_(parameter, 7.0)
    return model, ModelFacts(family.family, task, values, source, folder)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add (a tensor) or drop (None) entries of a folder's only weights file."""
    path = folder / "model.safetensors"
    held = load_file(path) | tensors
    save_file({key: value for key, value in held.items() if value is not None}, path, metadata={"format": "pt"})


def values(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_value_arrives(hf_folder: Folders, device: str) -> None:
    folder = hf_folder()
    model, facts = built(folder, device=device)
    report = load_weights(model, folder, facts)
    written = facts.mapping.to_theirs(dict(model.named_parameters()))
    assert written.keys() == values(folder).keys()
    assert all(torch.equal(written[key], value) for key, value in values(folder).items())
    assert (report.new, report.ignored, report.loaded) == ((), (), len(written))
    assert report.size_bytes == sum(value.nbytes for value in written.values())


def test_parameters_keep_their_identity_and_optimizers_see_the_values(hf_folder: Folders) -> None:
    folder = hf_folder()
    model, facts = built(folder)
    before = dict(model.named_parameters())
    load_weights(model, folder, facts)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in before.values())


def test_a_parameter_in_two_places_stays_one(hf_folder: Folders) -> None:
    folder = hf_folder("BertForMaskedLM")
    for device in ("cpu", "meta"):
        model, facts = built(folder, device=device)
        model.pooled = torch.nn.Module()  # a second place for the token embedding
        model.pooled.weight = model.get_parameter("embeddings.token.weight")
        load_weights(model, folder, facts)
        assert model.pooled.weight is model.get_parameter("embeddings.token.weight")
        assert torch.equal(model.pooled.weight, values(folder)["bert.embeddings.word_embeddings.weight"])


def test_the_model_does_not_depend_on_the_file(hf_folder: Folders) -> None:
    folder = hf_folder()
    wanted = values(folder)[QUERY].clone()
    model, facts = built(folder)
    load_weights(model, folder, facts)
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(b"\xff" * size)
    os.truncate(folder / "model.safetensors", 0)
    assert torch.equal(model.get_parameter(OUR_QUERY), wanted)
    with torch.no_grad():
        model.get_parameter(OUR_QUERY).zero_()
    assert (folder / "model.safetensors").stat().st_size == 0


def refused(folder: Path, task: str | None = None, **options: Any) -> str:
    """The message, after checking that nothing of the model has changed."""
    changes = options.pop("changes", {})
    model, facts = built(folder, task, **changes)
    with pytest.raises(CheckpointError) as error:
        load_weights(model, folder, facts, **options)
    assert all(bool((parameter == 7).all()) for parameter in model.parameters()), "half loaded"
    return str(error.value)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (None, ["[8, 8]", "found nothing"]),
        (torch.zeros(8, 9), ["expected shape [8, 8], found [8, 9]"]),
        (torch.zeros(8, 8, dtype=torch.int8), ["found int8", "never cast"]),
        (torch.zeros(8, 8, dtype=torch.int64), ["found int64"]),
        (torch.zeros(8, 8, dtype=torch.float64), ["found float64", "dtype="]),
        (torch.full((8, 8), float("nan")), ["expected finite values, found NaN or infinity in 64 of 64"]),
        (torch.eye(8) / 0, ["NaN or infinity in 64 of 64"]),
        (torch.eye(8).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(float("-inf"))), ["in 1 of 64"]),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("shard", ["1GB", "1KB"])
def test_a_bad_tensor_is_named_and_nothing_is_loaded(
    hf_folder: Folders, tensor: torch.Tensor | None, words: list[str], shard: str
) -> None:
    folder = hf_folder()
    change(folder, **{QUERY: tensor})
    if shard == "1KB":
        split(folder)
    text = refused(folder)
    assert all(word in text for word in (str(folder), ".safetensors", QUERY, *words)), text


def split(folder: Path) -> None:
    """Turn a folder's weights into two shards."""
    held = values(folder)
    keys = sorted(held)
    names = {key: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, key in enumerate(keys)}
    for name in set(names.values()):
        save_file({key: held[key] for key in keys if names[key] == name}, folder / name)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_several_bad_tensors_stand_in_one_error(hf_folder: Folders) -> None:
    folder = hf_folder()
    nan = torch.full((8,), float("nan"))
    change(folder, **{QUERY: None, "classifier.bias": torch.zeros(3), "strange": torch.zeros(1), "bert.pooler.dense.bias": nan})
    text = refused(folder)
    assert "3 problems" in text
    assert all(word in text for word in (QUERY, "classifier.bias: expected shape [2], found [3]", "strange"))


@pytest.mark.parametrize("layers", [1, 4])
def test_a_config_of_other_depth_is_named(hf_folder: Folders, layers: int) -> None:
    folder = hf_folder()
    text = refused(folder, changes={"num_layers": layers})
    assert f"The config says {layers} layers, the file has 2" in text


def test_a_config_with_another_vocabulary_names_key_and_both_sizes(hf_folder: Folders) -> None:
    text = refused(hf_folder(), changes={"vocab_size": 30})
    assert "bert.embeddings.word_embeddings.weight: expected shape [30, 8], found [20, 8]" in text


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_checkpoint_wrapped_module.", "model."])
def test_a_wrong_prefix_is_named(hf_folder: Folders, prefix: str) -> None:
    folder = hf_folder()
    save_file({prefix + key: value for key, value in values(folder).items()}, folder / "model.safetensors")
    assert f"prefix '{prefix}'" in refused(folder)


def test_adapter_keys_are_named(hf_folder: Folders) -> None:
    folder = hf_folder()
    change(folder, **{QUERY.replace("weight", "lora_A.default.weight"): torch.zeros(2, 8)})
    assert "Attach the adapter first" in refused(folder)


def test_a_truncated_file_is_named(hf_folder: Folders) -> None:
    folder = hf_folder()
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert str(path) in refused(folder)


def test_a_tied_second_name_may_be_there_if_it_is_equal(hf_folder: Folders) -> None:
    folder = hf_folder("BertForMaskedLM")
    word = values(folder)["bert.embeddings.word_embeddings.weight"]
    change(folder, **{"cls.predictions.decoder.weight": word.clone()})
    model, facts = built(folder)
    report = load_weights(model, folder, facts)
    assert report.ignored == (("cls.predictions.decoder.weight", "second name of bert.embeddings.word_embeddings.weight"),)
    other = word.clone()
    other[3, 4] += 1e-6
    change(folder, **{"cls.predictions.decoder.weight": other})
    text = refused(folder)
    assert "cls.predictions.decoder.weight: expected the values of bert.embeddings.word_embeddings.weight" in text
    assert '"tie_word_embeddings": false' in text


def test_a_tied_file_with_the_second_name_alone_is_read(hf_folder: Folders) -> None:
    folder = hf_folder("RobertaForMaskedLM")
    word = values(folder)["roberta.embeddings.word_embeddings.weight"]
    change(folder, **{"lm_head.decoder.weight": word, "roberta.embeddings.word_embeddings.weight": None})
    model, facts = built(folder)
    assert load_weights(model, folder, facts).new == ()
    assert torch.equal(model.get_parameter("embeddings.token.weight"), word)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_an_untied_head_is_read_apart(hf_folder: Folders, family: str) -> None:
    folder = hf_folder(f"{family}ForMaskedLM", tie_word_embeddings=False)
    head = "cls.predictions" if family == "Bert" else "lm_head"
    model, facts = built(folder)
    report = load_weights(model, folder, facts)
    assert torch.equal(model.get_parameter("head.decoder.weight"), values(folder)[f"{head}.decoder.weight"])
    assert torch.equal(model.get_parameter("head.bias"), values(folder)[f"{head}.decoder.bias"])
    assert report.ignored == ((f"{head}.bias", f"second name of {head}.decoder.bias"),)
    change(folder, **{f"{head}.decoder.bias": None})
    load_weights(model, folder, facts)
    assert torch.equal(model.get_parameter("head.bias"), values(folder)[f"{head}.bias"])


@pytest.mark.parametrize("task", ["classification", "token_classification", "question_answering"])
@pytest.mark.parametrize("source", ["BertForPreTraining", "BertForMaskedLM", "BertModel", "RobertaForMaskedLM"])
def test_a_new_head_is_reported_and_left_to_its_own_values(hf_folder: Folders, task: str, source: str) -> None:
    folder = hf_folder(source)
    model, facts = built(folder, task)
    report = load_weights(model, folder, facts)
    heads = {name for name in dict(model.named_parameters()) if name.startswith("head.")}
    assert heads <= set(report.new) <= heads | {"pooler.dense.weight", "pooler.dense.bias"}
    for name, parameter in model.named_parameters():
        assert bool((parameter == 7).all()) == (name in report.new)
    assert all(reason for _, reason in report.ignored)


def test_a_head_of_another_task_is_left_out_by_itself(hf_folder: Folders) -> None:
    folder = hf_folder("BertForTokenClassification")
    model, facts = built(folder, "classification")
    report = load_weights(model, folder, facts)
    assert set(report.new) == {"head.output.weight", "head.output.bias", "pooler.dense.weight", "pooler.dense.bias"}
    reason = "the head of BertForTokenClassification"
    assert set(report.ignored) == {("classifier.weight", reason), ("classifier.bias", reason)}


def test_a_head_with_other_labels_is_new_when_asked_for(hf_folder: Folders) -> None:
    folder = hf_folder(num_labels=6)
    assert "start a new head" in refused(folder, changes={"num_labels": 2, "label_names": None})
    model, facts = built(folder, num_labels=2, label_names=None)
    report = load_weights(model, folder, facts, new_head=True)
    assert report.new == ("head.output.weight", "head.output.bias")
    assert {key for key, _ in report.ignored} == {"classifier.weight", "classifier.bias"}


def test_a_head_without_its_backbone_is_refused(hf_folder: Folders) -> None:
    folder = hf_folder()
    save_file({key: value for key, value in values(folder).items() if "classifier" in key}, folder / "model.safetensors")
    assert "bert.embeddings.word_embeddings.weight" in refused(folder)


def test_old_names_and_buffers_are_read(hf_folder: Folders) -> None:
    folder = hf_folder()
    model, facts = built(folder)
    wanted = values(folder)
    renamed = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in wanted.items()
    }
    save_file(renamed | {"bert.embeddings.position_ids": torch.arange(18).unsqueeze(0)}, folder / "model.safetensors")
    report = load_weights(model, folder, facts)
    assert report.ignored == (("bert.embeddings.position_ids", "a constant buffer (0, 1, 2, ...) of old transformers"),)
    assert all(torch.equal(value, wanted[key]) for key, value in facts.mapping.to_theirs(dict(model.named_parameters())).items())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("asked", ["auto", torch.float32, torch.bfloat16, torch.float64])
def test_the_dtype_is_the_files_or_the_one_asked_for(hf_folder: Folders, stored: torch.dtype, asked: Any) -> None:
    folder = hf_folder()
    wanted = {key: value.to(stored) for key, value in values(folder).items()}
    save_file(wanted, folder / "model.safetensors")
    for device in ("cpu", "meta"):
        model, facts = built(folder, device=device)
        report = load_weights(model, folder, facts, dtype=asked)
        target = stored if asked == "auto" else asked
        assert report.dtype == target
        assert {parameter.dtype for parameter in model.parameters()} == {target}
        assert torch.equal(model.get_parameter(OUR_QUERY), wanted[QUERY].to(target))


def test_several_dtypes_become_the_widest(hf_folder: Folders) -> None:
    folder = hf_folder()
    change(folder, **{QUERY: values(folder)[QUERY].bfloat16()})
    model, facts = built(folder)
    assert load_weights(model, folder, facts).dtype == torch.float32
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_float64_is_rounded_when_asked_for(hf_folder: Folders) -> None:
    folder = hf_folder()
    change(folder, **{QUERY: values(folder)[QUERY].double()})
    model, facts = built(folder)
    assert load_weights(model, folder, facts, dtype=torch.float32).dtype == torch.float32


def test_values_beyond_the_asked_dtype_are_refused(hf_folder: Folders) -> None:
    folder = hf_folder()
    change(folder, **{QUERY: torch.full((8, 8), 1e6)})
    text = refused(folder, dtype=torch.float16)
    assert QUERY in text
    assert "range of torch.float16" in text
    assert "dtype=torch.int8: expected a float dtype" in refused(folder, dtype=torch.int8)


def test_large_finite_values_are_no_infinity(hf_folder: Folders) -> None:
    folder = hf_folder()
    change(folder, **{QUERY: torch.full((8, 8), 3e38)})
    model, facts = built(folder)
    load_weights(model, folder, facts)


def test_new_parts_take_the_dtype_of_the_rest(hf_folder: Folders) -> None:
    folder = hf_folder("BertModel", dtype="float16")
    save_file({key: value.half() for key, value in values(folder).items()}, folder / "model.safetensors")
    for device in ("cpu", "meta"):
        model, facts = built(folder, "token_classification", device=device)
        report = load_weights(model, folder, facts)
        assert report.new == ("head.output.weight", "head.output.bias")
        assert {(parameter.dtype, parameter.device.type) for parameter in model.parameters()} == {(torch.float16, "cpu")}


def test_wrapped_models_are_loaded_by_their_plain_names(hf_folder: Folders) -> None:
    folder = hf_folder()
    model, facts = built(folder)
    wrapped = torch.nn.Module()
    wrapped._orig_mod = model
    load_weights(wrapped, folder, facts)
    assert torch.equal(model.get_parameter(OUR_QUERY), values(folder)[QUERY])


def test_the_report_is_one_or_two_lines(hf_folder: Folders) -> None:
    folder = hf_folder("BertForMaskedLM")
    model, facts = built(folder, "classification")
    report = load_weights(model, folder, facts)
    first, second = str(report).splitlines()
    assert first.startswith(f"Loaded {report.loaded} tensors (0.0 MiB of float32, ")
    assert str(folder) in first
    assert "new, not in the file: " in second
    assert "head.output.weight" in second
    assert "left out: 5 (the head of masked language modelling)" in second
    many = tuple(f"n{index}" for index in range(9))
    text = str(LoadReport(1, many, (), torch.float32, folder, "c0ffee" * 7, 5, 0.1))
    assert "n5 and 3 more" in text
    assert "at c0ffeec0ffee" in text


def test_the_revision_of_a_snapshot_is_reported(hf_folder: Folders, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "c0ffee"
    shutil.copytree(hf_folder(), snapshot)
    model, facts = built(snapshot)
    assert load_weights(model, snapshot, facts).revision == "c0ffee"


def test_a_model_of_another_family_is_refused_by_the_table(hf_folder: Folders) -> None:
    folder = hf_folder("RobertaForSequenceClassification")
    model, _ = built(folder)
    bert = hf_folder(folder="bert")
    _, facts = built(bert)
    with pytest.raises(CheckpointError, match=r"head\.dense\.weight"):
        load_weights(model, bert, facts)
    with pytest.raises(ConfigError, match="model_type"):
        load_weights(model, bert, ModelFacts("mamba", "base", {}))
