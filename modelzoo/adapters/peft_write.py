"""Writing an adapter as PEFT's folder: all of it or nothing, looked at again once it is written."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from modelzoo.adapters.attach import Adaptable, LowRank, adapter_of, is_adapter_name, low_rank_parts
from modelzoo.adapters.lora import LowRankMap, LowRankTable
from modelzoo.adapters.peft_names import Place, parts_to_save, places, target_names
from modelzoo.adapters.peft_prefix import written_prefix
from modelzoo.adapters.peft_prompts import written_prompt
from modelzoo.adapters.prefix import prefix_of
from modelzoo.adapters.virtual_tokens import virtual_tokens_of
from modelzoo.config.adapter import AdapterConfig
from modelzoo.errors import CheckpointError, ConfigError, SaveError, listing
from modelzoo.hub import ModelFacts
from modelzoo.hub.files import ADAPTER_FILES, CONFIG_FILE, origin
from modelzoo.hub.model_tensors import slots
from modelzoo.hub.publish import FACTS_FILE, published, require_space, require_target
from modelzoo.hub.ranks import agreed, first_rank
from modelzoo.hub.safetensors_file import SafetensorsFile, header_of, write_safetensors
from modelzoo.hub.save import copied_files
from modelzoo.hub.shards import json_text, write_file
from modelzoo.sharded import full_tensor, is_sharded

__all__ = ["CONFIG", "PREFIX", "PROMPT_PREFIX", "TASK_TYPES", "WEIGHTS", "AdapterReport", "save_adapter"]

CONFIG, WEIGHTS = ADAPTER_FILES
PREFIX = "base_model.model."
"""What PEFT puts before transformers' names."""
PROMPT_PREFIX = "base_model."
"""The same where no module of transformers is replaced."""
TASK_TYPES = {
    "causal_lm": "CAUSAL_LM",
    "seq2seq_lm": "SEQ_2_SEQ_LM",
    "classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    "base": "FEATURE_EXTRACTION",
    "encoder": "FEATURE_EXTRACTION",
    "masked_lm": None,
    "multiple_choice": None,
}
"""PEFT's word for each task; it has none for masked language models and for choices."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """What was written, as it was found in the file afterwards."""

    folder: Path
    num_tensors: int
    num_values: int
    size_bytes: int
    """Of the weights file."""

    def __str__(self) -> str:
        return f"{self.num_tensors} tensors, {self.num_values:,} values, {self.size_bytes / 2**20:.2f} MiB in {self.folder}"


def save_adapter(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    base: str | None = None,
    revision: str | None = None,
    overwrite: bool = False,
) -> AdapterReport:
    """Write a model's adapter, and what is trained whole beside it, as a folder that PEFT loads. Collective on a sharded model.

    Beside PEFT's two files stand config.json (for the names of labels), the tokenizer's files and modelzoo.json.

    Args:
        model: With an adapter that is not a new one.
        folder: Where to; it must be absent or empty unless `overwrite`.
        base: Folder or hub id of the base, for whoever loads the adapter; None for where the model was loaded from.
        revision: Commit of the base on the hub.
        overwrite: Whether a folder with an adapter or a model is replaced, once the new one is complete.

    Raises:
        SaveError: The folder is in use, the disk fails, or the adapter changes nothing: every change is zero, or a value is not
            finite; what was there before is as it was.
        ConfigError: The model has no adapter, or one that PEFT has no file for.
    """
    config = adapter_of(model)
    if config is None:
        raise ConfigError(f"{type(model).__name__} has no adapter; attach one with add_adapter")
    if not config.has_file:
        raise ConfigError(f"adapter.method={config.method}: PEFT has no file for it; write the whole model with save_pretrained")
    target = Path(folder).expanduser()
    facts = cast(Adaptable, model).facts()
    written, described = _adapter_tensors(model, config, facts)
    whole, names = _whole(model, facts, PREFIX if config.is_low_rank else PROMPT_PREFIX)
    tensors = written | whole
    together = any(is_sharded(parameter) for parameter in model.parameters())
    problem = None
    if first_rank():
        values = {
            "base_model_name_or_path": base or _base_of(facts),
            "revision": revision or (origin(facts.source_folder)["revision"] if facts.source_folder else None),
            "task_type": TASK_TYPES[facts.task],
            "modules_to_save": names or None,
            **described,
        }
        try:
            _check_values(tensors, written)
            _publish(target, values, tensors, facts, config, dict(low_rank_parts(model)), overwrite=overwrite)
        except (SaveError, CheckpointError) as error:
            problem = error
    problems = agreed([str(problem)] if problem else [], together=together)
    if problem is not None:
        raise problem
    if problems:
        raise SaveError("\n".join(problems))
    size = (target / WEIGHTS).stat().st_size if (target / WEIGHTS).is_file() else 0
    return AdapterReport(target, len(tensors), sum(tensor.numel() for tensor in tensors.values()), size)


def _base_of(facts: ModelFacts) -> str | None:
    """Return the hub id of the model's folder where it is a snapshot of the cache, and its path elsewhere."""
    if facts.source_folder is None:
        return None
    found = origin(facts.source_folder)
    return found["source"] if found["revision"] else str(facts.source_folder.absolute())


def _adapter_tensors(model: nn.Module, config: AdapterConfig, facts: ModelFacts) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an adapter's tensors by PEFT's names, whole, and what adapter_config.json says of them."""
    prompt, prefix = virtual_tokens_of(model), prefix_of(model)
    if prompt is not None:
        return written_prompt(prompt, facts.values)
    return _low_rank(model, config, facts) if prefix is None else written_prefix(prefix, facts.task)


def _low_rank(model: nn.Module, config: AdapterConfig, facts: ModelFacts) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of the changes by PEFT's names, whole, and what adapter_config.json says of them."""
    parts = dict(low_rank_parts(model))
    shapes = {name: tuple(slot.tensor.shape) for name, slot in slots(model).items()}
    known, refused = places(facts.mapping, shapes)
    name_of = facts.converter.module_name
    problems = [f"{name}: {refused.get(name, 'has no weight in the table of names')}" for name in parts if name not in known]
    if problems:
        raise ConfigError(f"these changes have no form in PEFT's file:\n{listing(problems)}")
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, tuple[int, float]] = {}
    is_transposed = False
    for place in dict.fromkeys(known[name] for name in parts):
        own, rank, scale = _one_place(model, place, parts)
        theirs = name_of(place.theirs)
        tensors |= {f"{PREFIX}{theirs}.{key}": tensor for key, tensor in own.items()}
        ranks[theirs] = rank, scale * (math.sqrt(rank) if config.rank_stabilized else rank)
        is_transposed = is_transposed or place.is_transposed
    others = {path.rpartition(".")[0] for path in _their_names(facts, shapes)}
    targets = target_names(ranks, others - set(ranks))
    return tensors, _described(config, ranks, targets, is_transposed)


def _described(
    config: AdapterConfig, ranks: Mapping[str, tuple[int, float]], targets: list[str], is_transposed: bool
) -> dict[str, Any]:
    """Return the keys of adapter_config.json that say what the tensors mean; ranks that differ are listed by module."""
    common = min(ranks.values())
    others = {theirs: each for theirs, each in ranks.items() if each != common}
    return {
        "peft_type": "LORA",
        "r": common[0],
        "lora_alpha": _number(common[1]),
        "lora_dropout": config.dropout,
        "target_modules": targets,
        "rank_pattern": {f"^{theirs}": rank for theirs, (rank, _) in others.items()},
        "alpha_pattern": {f"^{theirs}": _number(alpha) for theirs, (_, alpha) in others.items()},
        "use_rslora": config.rank_stabilized,
        "use_dora": config.method == "dora",
        "fan_in_fan_out": is_transposed,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
    }


def _number(value: float) -> float:
    """Return a whole number as an integer, which is what PEFT writes."""
    return int(value) if value == int(value) else value


def _one_place(model: nn.Module, place: Place, parts: Mapping[str, LowRank]) -> tuple[dict[str, Tensor], int, float]:
    """Return the tensors of one module of transformers, its rank and its scale."""
    own = [(parts.get(name), size) for name, size in zip(place.ours, place.out_features, strict=True)]
    first = next(part for part, _ in own if part is not None)
    if isinstance(first, LowRankTable):
        a, b = _whole_value(first.a), _whole_value(first.b)
        return {"lora_embedding_A": a.t().contiguous(), "lora_embedding_B": b.t().contiguous()}, first.r, first.scale
    changed = [part for part, _ in own if isinstance(part, LowRankMap)]
    scales = {part.scale for part in changed}
    if len(scales) > 1:
        raise ConfigError(f"{place.theirs}: its maps {', '.join(place.ours)} have changes of different scales: {sorted(scales)}")
    rank = sum(part.r for part in changed)
    a = torch.cat([_whole_value(part.a) for part in changed])
    b = a.new_zeros(sum(place.out_features), rank)
    row, column = 0, 0
    for part, size in own:
        if isinstance(part, LowRankMap):
            b[row : row + size, column : column + part.r] = _whole_value(part.b)
            column += part.r
        row += size
    tensors = {"lora_A.weight": a, "lora_B.weight": b}
    if first.magnitude is not None:
        tensors["lora_magnitude_vector"] = torch.cat([_lengths(model, name, parts.get(name)) for name in place.ours])
    return tensors, rank, first.scale


def _lengths(model: nn.Module, name: str, part: LowRank | None) -> Tensor:
    """Return the lengths of a map's rows: trained, or the plain ones of a map beside it that does not change."""
    if isinstance(part, LowRankMap) and part.magnitude is not None:
        return _whole_value(part.magnitude)
    lengths: Tensor = torch.linalg.norm(_whole_value(model.get_parameter(f"{name}.weight")).float(), dim=1)
    return lengths


def _whole(model: nn.Module, facts: ModelFacts, prefix: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that are trained whole by PEFT's names, and the modules of transformers that they are."""
    places_ = slots(model)
    trained = {name for name, slot in places_.items() if slot.tensor.requires_grad and not is_adapter_name(name)}
    keys: dict[str, Tensor] = {}
    for group in facts.mapping.plan(places_):
        if not trained.intersection(group.ours):
            continue
        if missing := sorted(set(group.ours) - trained):
            raise ConfigError(f"{group.theirs[0]}: {', '.join(missing)} of it is frozen; name all of it in train_also, or none")
        values = group.to_theirs([_whole_value(places_[name].tensor) for name in group.ours])
        names = [facts.converter.module_name(facts.mapping.written(name)) for name in group.theirs]
        keys |= dict(zip(names, values, strict=True))
    shapes = {name: tuple(slot.tensor.shape) for name, slot in places_.items()}
    return {f"{prefix}{key}": value for key, value in keys.items()}, parts_to_save(list(keys), _their_names(facts, shapes))


def _their_names(facts: ModelFacts, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    groups = facts.mapping.plan(shapes)
    return [facts.converter.module_name(facts.mapping.written(name)) for group in groups for name in group.theirs]


def _whole_value(tensor: Tensor) -> Tensor:
    return full_tensor(tensor).detach().cpu()


def _check_values(tensors: Mapping[str, Tensor], changes: Iterable[str]) -> None:
    """Refuse an adapter that would do nothing, or harm.

    Raises:
        SaveError: No tensors, all changes zero, or a value that is not finite.
    """
    bad = [key for key, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        raise SaveError(
            f"expected finite values, found NaN or infinity in {len(bad)} tensors; nothing was written:\n{listing(bad)}"
        )
    ends = ("lora_B.weight", "lora_embedding_A")
    zero = [not bool(tensors[key].any()) for key in changes if key.endswith(ends)]
    if zero and all(zero):
        raise SaveError(
            f"all {len(zero)} changes are zero: the adapter was not trained, and would change nothing; nothing was written"
        )


def _publish(
    target: Path,
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    facts: ModelFacts,
    config: AdapterConfig,
    maps: Iterable[str],
    *,
    overwrite: bool,
) -> None:
    """Write the folder and read the weights' header again before it appears."""
    require_target(target, overwrite=overwrite)
    spec = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    own = {
        "family": facts.family,
        "task": facts.task,
        "adapter": config.model_dump(mode="json"),
        "maps": list(maps),
        **(origin(facts.source_folder) if facts.source_folder is not None else {"source": None, "revision": None}),
    }
    texts = {
        CONFIG: json_text({key: value for key, value in values.items() if value is not None or key in ("task_type",)}),
        CONFIG_FILE: json_text(facts.converter.write_config(facts.values, facts.source, facts.task, torch.float32)),
        FACTS_FILE: json_text(own),
    }
    texts |= {name: path.read_bytes() for name, path in copied_files(facts.source_folder).items()}
    require_space(target, sum(tensor.nbytes for tensor in tensors.values()) + sum(map(len, texts.values())))
    try:
        with published(target) as temporary:
            write_safetensors(temporary / WEIGHTS, spec, (tensors[key] for key in header_of(spec)[1]))
            for name, text in texts.items():
                write_file(temporary / name, text)
            _check_file(temporary / WEIGHTS, spec)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(f"{target}: could not be written ({reason}); what was there before is as it was") from error


def _check_file(path: Path, spec: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Compare what stands in the file with what was to be written."""
    file = SafetensorsFile(path, path.name)
    try:
        found = {key: (entry.dtype, entry.shape) for key, entry in file.entries.items()}
    finally:
        file.close()
    if found != dict(spec):
        raise SaveError(f"{path.name}: expected {len(spec)} tensors, found {len(found)} or others; nothing was published")
