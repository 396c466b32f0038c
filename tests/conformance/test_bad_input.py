"""Every family refuses the same bad input through the same code, by file, key and value: configs first, then files."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Case, has_reference, main_task, row, saved
from safetensors.torch import load_file, save_file
from torch import Tensor

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError, ModelZooError
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.verification import verify

STRANGE = ("no_such_value", [1, 2], {"a": 1}, float("nan"), -7)
KEYS = {family: converter_for(family).table.keys() for family in FAMILIES}
ROTARY = [family for family in FAMILIES if "rope_theta" in KEYS[family]]
WITH_WORDS = [family for family in FAMILIES if "vocab_size" in row(family)["config"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a family's folder, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = saved(plain(family), tmp_path_factory.mktemp(family) / "plain")
        return made[family]

    return folder


def plain(family: str, **changes: Any) -> Case:
    return Case(family, main_task(family), {**row(family)["config"], **changes}, "plain")


def refused(folder: Path, target: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> str:
    """Return the message with which a changed copy of a folder is refused."""
    shutil.copytree(folder, target)
    config, tensors = json.loads((target / "config.json").read_text()), load_file(target / "model.safetensors")
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelZooError) as error:
        modelzoo.from_pretrained(target)
    assert isinstance(error.value, ConfigError | CheckpointError)
    return str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_misspelt_model_type_is_refused_with_the_known_ones(family: str, folders: Any, tmp_path: Path) -> None:
    message = refused(folders(family), tmp_path / "x", lambda config, _: config.update(model_type=f"{family}z"))
    assert f"model_type='{family}z' is not known" in message
    assert all(known in message for known in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_refuses_values_that_are_none_by_field_and_value(family: str) -> None:
    converter, source = converter_for(family), dict(row(family)["config"])
    for field in converter.table.fields:
        for value in STRANGE:
            if value == -7 and field.check(-7) is None:
                continue
            with pytest.raises(ConfigError) as error:
                converter.read_config({**source, field.theirs: value}, main_task(family))
            assert f"{field.theirs}: expected" in str(error.value)
            assert repr(value) in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_that_are_read_together_refuse_values_that_are_none(family: str) -> None:
    converter, source = converter_for(family), dict(row(family)["config"])
    alone = {field.theirs for field in converter.table.fields}
    for key in sorted(set(KEYS[family]) - alone):
        for value in ("no_such_value", {"a": 1}):
            with pytest.raises(ConfigError) as error:
                converter.read_config({**source, key: value}, main_task(family))
            assert key.removeprefix("local_").removeprefix("global_") in str(error.value)
            assert repr(value) in str(error.value) or (isinstance(value, dict) and re.search(r"\ba\b", str(error.value)))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_built_is_refused_by_field_and_reason(family: str) -> None:
    converter, source = converter_for(family), dict(row(family)["config"])
    for need in converter.table.require:
        task = need.tasks[0] if need.tasks else main_task(family)
        if task not in converter.architectures:
            continue
        with pytest.raises(ConfigError) as error:
            converter.read_config({**source, need.theirs: "no_such_value"}, task)
        assert f"{need.theirs}: expected" in str(error.value)
        assert f"'no_such_value'; {need.reason}" in str(error.value)


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "su", "factor": 2.0}}, "'su'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "two", "rope_theta": 1e4}}, "'two'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "-1.0"),
        ({"rope_parameters": None, "rope_scaling": {"factor": 2.0}}, "beside factor, found nothing of that name"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1]}}, "mrope_section, not built"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "expected 1 or nothing, found 0.5"),
        ({"rope_parameters": [1]}, r"\[1\]"),
    ],
)
def test_rotary_positions_of_another_kind_are_refused(family: str, stated: dict[str, Any], found: str) -> None:
    source = {**row(family)["config"], **stated}
    with pytest.raises(ConfigError, match=f"(rope|factor).*{found}"):
        converter_for(family).read_config(source, main_task(family))


@pytest.mark.parametrize("family", WITH_WORDS)
def test_a_vocabulary_of_any_size_is_read_and_a_config_of_another_is_refused(family: str, folders: Any, tmp_path: Path) -> None:
    folder = saved(plain(family, vocab_size=67), tmp_path / "odd")
    if has_reference(family):
        assert verify(folder, tolerance=1e-5).is_equal
    modelzoo.from_pretrained(folder).save_pretrained(tmp_path / "again")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    message = refused(folder, tmp_path / "other", lambda config, _: config.update(vocab_size=64))
    assert "67" in message
    assert "64" in message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_does_not_fit_is_refused_by_key(family: str, folders: Any, tmp_path: Path) -> None:
    folder = folders(family)
    key = next(name for name, tensor in load_file(folder / "model.safetensors").items() if tensor.dim() == 2 and "0" in name)

    def put(new: Callable[[Tensor], Tensor]) -> Callable[[Any, dict[str, Tensor]], object]:
        return lambda _, tensors: tensors.update({key: new(tensors[key])})

    def broken(tensor: Tensor) -> Tensor:
        tensor[0, 0] = float("nan")
        return tensor

    def renamed(prefix: str) -> Callable[[Any, dict[str, Tensor]], object]:
        def change(_: Any, tensors: dict[str, Tensor]) -> None:
            old = dict(tensors)
            tensors.clear()
            tensors.update({f"{prefix}{name}": tensor for name, tensor in old.items()})

        return change

    shape = [*load_file(folder / "model.safetensors")[key].shape]
    changes: dict[str, tuple[Any, list[str]]] = {
        "dropped": (lambda _, tensors: tensors.pop(key), [key, "found nothing"]),
        "longer": (put(lambda tensor: torch.cat([tensor, tensor[:1]])), [key, str(shape), str([shape[0] + 1, shape[1]])]),
        "transposed": (put(lambda tensor: tensor[:, 1:]), [key, str([shape[0], shape[1] - 1])]),
        "integers": (put(lambda tensor: tensor.to(torch.int8)), [key, "found int8; it is never cast"]),
        "nan": (put(broken), [key, "found NaN or infinity in 1 of"]),
        "extra": (lambda _, tensors: tensors.update(extra=torch.zeros(3)), ["extra: expected no such key, found float32 [3]"]),
        "wrapped": (renamed("_orig_mod."), ["found the wrapper prefix '_orig_mod.'"]),
        "adapter": (lambda _, t: t.update({f"{key}.lora_A": torch.zeros(2, 2)}), [f"{key}.lora_A", "Attach the adapter first"]),
    }
    for name, (change, words) in changes.items():
        message = refused(folder, tmp_path / name, change)
        assert all(word in message for word in words), (name, message)


def last_norms(family: str, folder: Path) -> list[tuple[str, ...]]:
    """Return the keys of each norm that stands behind a stack, or is the last of its last block."""
    model = modelzoo.from_pretrained(folder)
    mapping = model.facts().mapping
    groups = mapping.plan({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    last = max((name.split(".layers.")[1].split(".")[0] for name, _ in model.named_parameters() if ".layers." in name), key=int)
    found: dict[str, tuple[str, ...]] = {}
    for group in groups:
        module = group.ours[0].rpartition(".")[0]
        is_last = module in ("encoder.norm", "decoder.norm") or f".layers.{last}." in module
        if is_last and module.endswith("norm"):
            found[module] = (*found.get(module, ()), *(mapping.written(name) for name in group.theirs))
    return list(found.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_norm_is_an_error_that_names_its_keys(family: str, folders: Any, tmp_path: Path) -> None:
    norms = last_norms(family, folders(family))
    assert norms
    for number, keys in enumerate(norms):
        message = refused(folders(family), tmp_path / str(number), lambda _, tensors, keys=keys: [tensors.pop(key) for key in keys])
        assert all(f"{key}: expected a tensor of shape" in message for key in keys), message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_name_of_a_tied_weight_must_hold_the_same_values(family: str, folders: Any, tmp_path: Path) -> None:
    model = modelzoo.from_pretrained(folders(family))
    mapping = model.facts().mapping
    names = [(mapping.written(tie.alias), mapping.written(tie.target)) for tie in mapping.tied if tie.must_equal]
    if not names:
        pytest.skip("nothing is tied in this family's plain config")
    for number, (alias, target) in enumerate(names):
        equal = tmp_path / f"equal{number}"
        shutil.copytree(folders(family), equal)
        tensors = load_file(equal / "model.safetensors")
        save_file({**tensors, alias: tensors[target].clone()}, equal / "model.safetensors", {"format": "pt"})
        again = modelzoo.from_pretrained(equal)
        assert all(torch.equal(first, second) for first, second in zip(again.parameters(), model.parameters(), strict=True))
        if converter_for(family).is_tied_by_tensors and alias == "lm_head.weight":
            continue  # other values say that it is not tied: tests/models/test_seq2seq_models.py
        message = refused(folders(family), tmp_path / f"other{number}", lambda _, t, a=alias, b=target: t.update({a: t[b] + 1}))
        assert f"{alias}: expected the values of {target}, because the config ties the two, found others" in message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_other_depth_says_both_depths(family: str, folders: Any, tmp_path: Path) -> None:
    fields = {field.ours: field.theirs for field in converter_for(family).table.fields}
    layers = model_class(family).from_pretrained(folders(family)).config.num_layers  # type: ignore[attr-defined]  # all have it

    def deeper(config: dict[str, Any], _: Any) -> None:
        config[fields["num_layers"]] = layers + 1
        for name, value in list(config.items()):
            if isinstance(value, list) and len(value) == layers:
                config[name] = [*value, value[-1]]

    message = refused(folders(family), tmp_path / "deeper", deeper)
    assert f"expected {layers} layers, as the weights have, found num_layers={layers + 1}" in message
