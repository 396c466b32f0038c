"""Which class builds which `model_type`, and loading without naming one."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelzoo.errors import ConfigError, closest

if TYPE_CHECKING:
    from modelzoo.models.model import Model
    from modelzoo.models.pretrained import Pretrained

__all__ = ["FAMILIES", "find_pretrained", "from_pretrained", "model_class"]

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "modelzoo.models.bert:Bert",
        "cpm1": "modelzoo.models.cpm1:CPM1",
        "cpm2": "modelzoo.models.cpm2:CPM2",
        "cpm3": "modelzoo.models.cpm3:CPM3",
        "cpmant": "modelzoo.models.cpm_ant:CpmAnt",
        "cpmbee": "modelzoo.models.cpm_bee:CpmBee",
        "dinov2": "modelzoo.models.dinov2:Dinov2",
        "distilbert": "modelzoo.models.distilbert:DistilBert",
        "electra": "modelzoo.models.electra:Electra",
        "glm-10b": "modelzoo.models.glm_10b:GLM10B",
        "gpt2": "modelzoo.models.gpt2:GPT2",
        "gptj": "modelzoo.models.gptj:GPTJ",
        "llama": "modelzoo.models.llama:Llama",
        "longformer": "modelzoo.models.longformer:Longformer",
        "minicpm": "modelzoo.models.minicpm:MiniCPM",
        "mistral": "modelzoo.models.mistral:Mistral",
        "mixtral": "modelzoo.models.mixtral:Mixtral",
        "modernbert": "modelzoo.models.modernbert:ModernBert",
        "mt5": "modelzoo.models.mt5:MT5",
        "opt": "modelzoo.models.opt:OPT",
        "qwen2": "modelzoo.models.qwen2:Qwen2",
        "qwen2_moe": "modelzoo.models.mixtral:Qwen2Moe",
        "qwen3": "modelzoo.models.qwen3:Qwen3",
        "roberta": "modelzoo.models.roberta:Roberta",
        "t5": "modelzoo.models.t5:T5",
        "vit": "modelzoo.models.vit:ViT",
        "xlm-roberta": "modelzoo.models.roberta:XlmRoberta",
    }
)
"""Hugging Face's `model_type` to "module:Class"."""


def model_class(model_type: str) -> "type[Model]":
    """Return the class that builds a `model_type`.

    Raises:
        ConfigError: No family has that name; the message lists those that exist.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        near = closest(str(model_type), FAMILIES)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"model_type={model_type!r} is not known; {hint}known: {', '.join(FAMILIES)}")
    module, name = FAMILIES[model_type].split(":")
    found: type[Model] = getattr(importlib.import_module(module), name)
    return found


def from_pretrained(name_or_path: str | os.PathLike[str], *, family: str | None = None, **options: Any) -> "Model":
    """Load a Hugging Face checkpoint of any family, strictly, in evaluation mode.

    Args:
        name_or_path: A local folder, or a model's name on the Hugging Face hub; a folder of that name wins. One with an adapter
            (adapter_config.json) is loaded with its base.
        family: A `model_type`, for a config.json that has none (from before 2020); None for the config's own.
        **options: Those of `Model.from_pretrained`: task, num_labels, label_names, revision, token, cache_dir, local_files_only,
            dtype, allow_pickle, dropout, lay_out.

    Returns:
        A model of the family that its config.json names.

    Raises:
        CheckpointError: Files are missing, malformed, or do not fit the config.
        ConfigError: The family is not known, or its config asks for something that it does not build.
    """
    lay_out = options.pop("lay_out", None)
    return find_pretrained(name_or_path, family=family, **options).load(lay_out)


def find_pretrained(name_or_path: str | os.PathLike[str], *, family: str | None = None, **options: Any) -> "Pretrained[Model]":
    """Find a checkpoint of any family and read its config, but not its weights: `.skeleton()` and `.load()` come after.

    Args:
        name_or_path: As of `from_pretrained`, and so are all others.
        family: A `model_type`.
        **options: Those of `from_pretrained` but for lay_out.

    Raises:
        CheckpointError: Files are missing, or too small or large for the config.
        ConfigError: The family is not known, or its config asks for something that it does not build.
    """
    from modelzoo import hub
    from modelzoo.adapters import is_adapter_folder
    from modelzoo.models.pretrained import find_pretrained as find
    from modelzoo.models.pretrained import naming

    places = {
        name: options[name] for name in ("revision", "token", "cache_dir", "local_files_only", "allow_pickle") if name in options
    }
    folder = hub.resolve(name_or_path, **places)
    if is_adapter_folder(folder):
        from modelzoo.models.adapter_base import find_base

        base, adapter, options = find_base(folder, **options)
        return replace(find_pretrained(base, family=family, **options), adapter=adapter)
    config = hub.read_config(folder)
    if family is None and "model_type" not in config:
        raise ConfigError(
            f"{folder / 'config.json'}: model_type: expected one of {', '.join(FAMILIES)}, found no such key; add it, or say "
            "which it is with family="
        )
    with naming(folder / "config.json"):
        found = model_class(family or config["model_type"])
    return find(found, folder, **options)
