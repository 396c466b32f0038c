"""Reading PEFT's folder: what its config says is checked, every tensor is looked for, and nothing of it is passed over."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

from modelzoo.adapters.attach import Adaptable, adapter_of
from modelzoo.adapters.peft_file import AdapterFile, lora_problems
from modelzoo.adapters.peft_plan import Plan
from modelzoo.adapters.peft_prefix import PREFIX_TYPE, prefix_problems
from modelzoo.adapters.peft_prompts import PROMPT_TENSOR, PROMPT_TYPE, config_problems
from modelzoo.adapters.peft_write import CONFIG, PREFIX, PROMPT_PREFIX, WEIGHTS
from modelzoo.adapters.prefix import Prefix, require_prefix
from modelzoo.adapters.virtual_tokens import VirtualTokens, open_door, require_inputs
from modelzoo.errors import CheckpointError, ConfigError, listing
from modelzoo.hub.files import check_inside, read_json, shown
from modelzoo.hub.model_tensors import put_local
from modelzoo.hub.publish import FACTS_FILE
from modelzoo.hub.safetensors_file import SafetensorsFile
from modelzoo.sharded import is_sharded, write_local, write_whole

__all__ = ["AdapterFile", "attach_file", "fill_from_file", "is_adapter_folder", "load_adapter", "read_adapter"]

_CONFIG_BYTES = 2**20
_NOT_BUILT: Mapping[str, Sequence[object]] = {
    "alora_invocation_tokens": (None,),
    "layer_replication": (None,),
    "lora_bias": (False, None),
    "megatron_config": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_bdlora": (None, False),
    "use_qalora": (False, None),
}
"""Keys of adapter_config.json that change what the tensors mean, with the values that are built here."""


def is_adapter_folder(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an adapter and not a model."""
    return (Path(folder) / CONFIG).is_file()


def read_adapter(folder: str | os.PathLike[str]) -> AdapterFile:
    """Read an adapter's folder.

    Raises:
        CheckpointError: A file is missing or broken, there are no tensors, or values that are not finite.
        ConfigError: The config asks for something that is not built; the message names it.
    """
    place = Path(folder)
    values = read_json(place, CONFIG, _CONFIG_BYTES)
    _check_config(place / CONFIG, values)
    file = SafetensorsFile(check_inside(place, WEIGHTS), str(place / WEIGHTS))
    try:
        tensors = {key: file.read(key) for key in file.entries}
    finally:
        file.close()
    if not tensors:
        raise CheckpointError(f"{place / WEIGHTS}: expected an adapter's tensors, found none: the file is empty")
    is_before = values["peft_type"] in (PROMPT_TYPE, PREFIX_TYPE)
    prefix = PROMPT_PREFIX if is_before else PREFIX
    apart = {PROMPT_TENSOR} if is_before else set()
    problems = [
        f"{shown(key)}: expected a name that begins with {prefix}"
        for key in tensors
        if not key.startswith(prefix) and key not in apart
    ]
    problems += [
        f"{shown(key)}: expected finite floats of 1 or 2 dimensions, found {tensor.dtype} {list(tensor.shape)}"
        for key, tensor in tensors.items()
        if not tensor.is_floating_point() or not tensor.numel() or not bool(tensor.isfinite().all())
    ]
    if problems:
        raise CheckpointError(f"{place / WEIGHTS}: cannot be used:\n{listing(problems)}")
    own = read_json(place, FACTS_FILE, _CONFIG_BYTES) if (place / FACTS_FILE).is_file() else {}
    return AdapterFile(
        folder=place,
        values=values,
        tensors={key.removeprefix(prefix): tensor.float() for key, tensor in tensors.items()},
        own=own,
    )


def _check_config(path: Path, values: Mapping[str, Any]) -> None:
    found = values.get("peft_type")
    if found in (PROMPT_TYPE, PREFIX_TYPE):
        if wrong := config_problems(values) if found == PROMPT_TYPE else prefix_problems(values):
            raise ConfigError(f"{path}: this adapter cannot be used:\n{listing(wrong)}")
        return
    if found != "LORA":
        raise ConfigError(
            f"{path}: peft_type: expected LORA, {PROMPT_TYPE} or {PREFIX_TYPE}, found {shown(repr(found))}, which is not built"
        )
    problems = [
        f"{key}={shown(repr(values[key]))}: is not built" for key, allowed in _NOT_BUILT.items() if values.get(key) not in allowed
    ]
    problems += lora_problems(values)
    if problems:
        raise ConfigError(f"{path}: this adapter cannot be used:\n{listing(problems)}")


def load_adapter(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Attach an adapter from PEFT's folder to its base, in place, frozen base and all.

    Args:
        model: The base: a plain model of the zoo with its values, without an adapter.
        folder: With adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: The files are broken or do not fit the model; all offending tensors are listed and nothing was changed.
        ConfigError: The adapter needs something that is not built, or the model has an adapter.
    """
    file = read_adapter(folder)
    attach_file(model, file)
    fill_from_file(model, file)


def attach_file(model: nn.Module, file: AdapterFile) -> frozenset[str]:
    """Give a model, which may be on meta, the places for an adapter's values, after looking at all of them.

    Returns:
        The names of the model's own tensors that the file holds.

    Raises:
        CheckpointError: As `load_adapter`.
        ConfigError: As `load_adapter`.
    """
    if adapter_of(model) is not None:
        raise ConfigError(f"{type(model).__name__} has an adapter; merge it with merge_adapter, or load the base again")
    plan = Plan(model, file)
    if plan.problems:
        raise CheckpointError(f"{file.folder / WEIGHTS}: does not fit this {type(model).__name__}:\n{listing(plan.problems)}")
    config = plan.config()
    facts = cast(Adaptable, model).facts()
    if config.method == "prompt":
        require_inputs(model, facts.task, config)
    if config.method == "prefix":
        require_prefix(model, facts.family, facts.task, config)
    model.requires_grad_(False)
    for name, part in plan.parts.items():
        module: Any = model.get_submodule(name)
        module.adapter = part.train(model.training)
        if isinstance(part, VirtualTokens):
            open_door(model, part)
        if isinstance(part, Prefix):
            vars(model)["num_virtual_tokens"] = part.num_tokens
    for name in plan.whole:
        model.get_parameter(name).requires_grad_(True)
    vars(model)["adapter_config"] = config
    return frozenset(plan.whole)


def fill_from_file(model: nn.Module, file: AdapterFile) -> None:
    """Give the adapter and what was trained whole their values, on each rank its own part of them."""
    plan = Plan(model, file)
    for name, own in plan.values.items():
        for key, value in own.items():
            parameter = model.get_parameter(f"{name}.adapter.{key}")
            write_whole(parameter, value)
    for name, value in plan.whole.items():
        slot = plan.slots[name]
        if is_sharded(slot.tensor):
            put_local(slot, name, value, whole=True)
        else:
            write_local(slot.tensor, value)
