"""Writing a model as a plain Hugging Face folder: all of it or nothing."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo.converters import Group
from modelzoo.converters.family import size_problems
from modelzoo.errors import CheckpointError, SaveError, listing
from modelzoo.hub.facts import ModelFacts
from modelzoo.hub.files import CONFIG_FILE, COPIED_FILES, check_inside, origin
from modelzoo.hub.model_tensors import Slot, gathered, has_adapter, slots
from modelzoo.hub.publish import FACTS_FILE, published, require_space, require_target
from modelzoo.hub.ranks import agreed, first_rank
from modelzoo.hub.safetensors_file import DTYPE_NAMES, header_of, write_safetensors
from modelzoo.hub.shards import Spec, divided, index_text, json_text, shard_bytes, spec_bytes, write_file
from modelzoo.sharded import is_sharded

__all__ = ["copied_files", "save_pretrained"]


@dataclass(frozen=True)
class _Export:
    """What will be written: the tensors of each file, and where each comes from."""

    files: dict[str, Spec]
    groups: dict[str, tuple[Group, int]]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return sum(spec_bytes(spec) for spec in self.files.values())


def save_pretrained(
    model: nn.Module,
    folder: str | os.PathLike[str],
    facts: ModelFacts,
    *,
    dtype: torch.dtype | None = None,
    max_shard_size: str | int = "50GB",
    overwrite: bool = False,
) -> Path:
    """Write a folder that transformers loads strictly: config.json, safetensors, the tokenizer's files; beside them modelzoo.json.

    Everything goes into a temporary folder beside the target, which is renamed once it is complete and on the disk. A model with
    DTensors is saved by all ranks together: its tensors are gathered one at a time and rank 0 writes. Of a plain model on several
    ranks, rank 0 writes and the others return at once.

    Args:
        model: Its tensors must be those that `facts` describes.
        folder: Where to. A folder with something in it is refused.
        facts: What the model is; `source` is the config that is kept, `source_folder` has the tokenizer's files.
        dtype: What the file's tensors are; None: what the model's are. The config says it too.
        max_shard_size: Bytes of tensors in one file, or a size such as "5GB".
        overwrite: Replace a model that is there. Files that are no part of a model are kept.

    Returns:
        The folder.

    Raises:
        SaveError: The folder is in use, there is not enough space, the disk fails, or the model has an adapter; what was there
            before is as it was.
        CheckpointError: The model's tensors, its config and the table of names do not agree; nothing is written.
    """
    target = Path(folder).expanduser()
    if has_adapter(model):
        raise SaveError(
            f"{target}: a model with an adapter is not one model's weights: write the adapter with modelzoo.adapters.save_adapter, "
            "or put it into the weights with merge_adapter first"
        )
    places = slots(model)
    together = any(is_sharded(slot.tensor) for slot in places.values())
    export = _planned(places, facts, dtype, shard_bytes(max_shard_size))
    problem: SaveError | CheckpointError | None = None
    if first_rank():
        try:
            _write_first(target, export, places, facts, overwrite=overwrite)
        except (SaveError, CheckpointError) as error:
            problem = error
            if together:
                _join_gathers(export, places, error)
    elif together:
        _drain(_tensors(export, places))
    problems = agreed([str(problem)] if problem else [], together=together)
    if problem:
        raise problem
    if problems:
        raise SaveError("\n".join(problems))
    return target


def _planned(places: Mapping[str, Slot], facts: ModelFacts, dtype: torch.dtype | None, limit_bytes: int) -> _Export:
    """Compare the model with its config and its table, and lay out the files."""
    shapes = {name: tuple(slot.tensor.shape) for name, slot in places.items()}
    problems = size_problems(facts.converter, facts.values, shapes, facts.task)
    counts = {key: facts.values[field] for key, field in facts.converter.counts.items()}
    required = {name for group in facts.mapping.expected(counts) for name in group.ours}
    allowed = {name for group in facts.mapping.expected(counts, with_optional=True) for name in group.ours}
    problems += [f"{name}: expected in the model, found nothing" for name in sorted(required - set(shapes))]
    problems += [f"{name}: expected no such tensor, found {list(shapes[name])}" for name in sorted(set(shapes) - allowed)]
    for name, slot in places.items():
        if not slot.tensor.is_floating_point() or slot.tensor.dtype not in DTYPE_NAMES:
            problems.append(f"{name}: expected a float tensor, found {slot.tensor.dtype}")
        if slot.tensor.device.type == "meta":
            problems.append(f"{name}: expected values, found a tensor on meta")
    if problems:
        raise CheckpointError(f"The model cannot be saved as {facts.family}, task {facts.task}:\n{listing(problems)}")
    spec, groups = _converted_spec(places, facts, dtype)
    found = {entry[0] for entry in spec.values()}
    widest = next(iter(found)) if len(found) == 1 else torch.float32
    return _Export(divided(spec, limit_bytes), groups, widest)


def _converted_spec(
    places: Mapping[str, Slot], facts: ModelFacts, dtype: torch.dtype | None
) -> tuple[Spec, dict[str, tuple[Group, int]]]:
    """Return dtype and shape of each tensor that is written, and the group and position that it comes from."""
    mapping = facts.mapping
    spec: Spec = {}
    groups: dict[str, tuple[Group, int]] = {}
    copies = {tie.target: tie.alias for tie in mapping.tied if tie.written}
    for group in mapping.plan(places):
        own = [places[name].tensor for name in group.ours]
        shapes = group.rule.op.inverse.shapes([tuple(tensor.shape) for tensor in own])
        for index, (name, shape) in enumerate(zip(group.theirs, shapes, strict=True)):
            for key in (name, copies[name]) if name in copies else (name,):
                spec[mapping.written(key)] = (dtype or own[0].dtype, shape)
                groups[mapping.written(key)] = (group, index)
    return spec, groups


def _tensors(export: _Export, places: Mapping[str, Slot]) -> Iterator[Tensor]:
    """Yield the tensors in the order in which the files hold them; every rank walks through the same ones."""
    kept: dict[tuple[str, ...], list[Tensor]] = {}
    left = {group.ours: len(group.theirs) for group, _ in export.groups.values()}
    for spec in export.files.values():
        for key in header_of(spec)[1]:
            group, index = export.groups[key]
            if group.ours not in kept:
                kept[group.ours] = group.to_theirs([gathered(places[name].tensor) for name in group.ours])
            value = kept[group.ours][index].to(spec[key][0])
            left[group.ours] -= 1
            if left[group.ours] <= 0:
                del kept[group.ours]
            yield value


def _drain(tensors: Iterator[Tensor]) -> None:
    for _ in tensors:
        pass


class _Interrupted(SaveError):
    """A save that failed while tensors were being gathered; `rest` are the gathers that the other ranks still wait for."""

    def __init__(self, message: str, rest: Iterator[Tensor]) -> None:
        super().__init__(message)
        self.rest = rest


def _join_gathers(export: _Export, places: Mapping[str, Slot], error: Exception) -> None:
    """Take part in the gathers that the other ranks still do."""
    _drain(error.rest if isinstance(error, _Interrupted) else _tensors(export, places))


def _write_first(target: Path, export: _Export, places: Mapping[str, Slot], facts: ModelFacts, *, overwrite: bool) -> None:
    """Write the folder on the rank that writes."""
    tensors = _tensors(export, places)
    try:
        require_target(target, overwrite=overwrite)
        texts = _texts(export, facts)
        texts |= {name: path.read_bytes() for name, path in copied_files(facts.source_folder).items()}
        require_space(target, export.size_bytes + sum(len(text) for text in texts.values()))
        with published(target) as temporary:
            for name, spec in export.files.items():
                write_safetensors(temporary / name, spec, (next(tensors) for _ in spec))
            for name, text in texts.items():
                write_file(temporary / name, text)
    except SaveError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _Interrupted(f"{target}: could not be written ({reason}); what was there before is as it was", tensors) from error


def _texts(export: _Export, facts: ModelFacts) -> dict[str, bytes]:
    """Return the JSON files: the config, our own facts, and the index of several shards."""
    config: dict[str, Any] = facts.converter.write_config(facts.values, facts.source, facts.task, export.dtype)
    if isinstance(config.get("id2label"), dict):
        # As numbers they sort as transformers sorts them: 2 before 10.
        config["id2label"] = {int(key): name for key, name in config["id2label"].items()}
    try:
        own_version = version("modelzoo-hub")
    except PackageNotFoundError:
        own_version = "unknown"
    own = {
        "modelzoo_version": own_version,
        "family": facts.family,
        "task": facts.task,
        **(origin(facts.source_folder) if facts.source_folder is not None else {"source": None, "revision": None}),
    }
    texts = {CONFIG_FILE: json_text(config), FACTS_FILE: json_text(own)}
    return texts | index_text(export.files)


def copied_files(folder: Path | None) -> dict[str, Path]:
    """Return the files of the model's own folder that are copied, by name."""
    if folder is None or not folder.is_dir():
        return {}
    return {name: check_inside(folder, name) for name in COPIED_FILES if (folder / name).exists()}
