"""Writing a model as a plain Hugging Face folder: all of it or nothing."""

import json
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
from modelzoo.hub.model_tensors import Slot, gathered, is_sharded, slots
from modelzoo.hub.publish import FACTS_FILE, published, require_space, require_target
from modelzoo.hub.ranks import agreed, first_rank
from modelzoo.hub.safetensors_file import DTYPE_NAMES, header_of, write_safetensors

__all__ = ["save_pretrained"]

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

Spec = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class _Export:
    """What will be written: the tensors of each file, and where each comes from."""

    files: dict[str, Spec]
    groups: dict[str, tuple[Group, int]]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return sum(_spec_bytes(spec) for spec in self.files.values())


def _spec_bytes(spec: Spec) -> int:
    return sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in spec.values())


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
        SaveError: The folder is in use, there is not enough space, or the disk fails; what was there before is as it was.
        CheckpointError: The model's tensors, its config and the table of names do not agree; nothing is written.
    """
    target = Path(folder).expanduser()
    places = slots(model)
    together = any(is_sharded(slot.tensor) for slot in places.values())
    export = _planned(places, facts, dtype, _size_bytes(max_shard_size))
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


def _size_bytes(size: str | int) -> int:
    """Return bytes of "5GB" and the like."""
    text = str(size).strip().upper()
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    try:
        value = int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise SaveError(f"max_shard_size={size!r}: expected bytes above 0, or a size such as '5GB' or '500MB'")
    return value


def _planned(places: Mapping[str, Slot], facts: ModelFacts, dtype: torch.dtype | None, shard_bytes: int) -> _Export:
    """Compare the model with its config and its table, and lay out the files."""
    shapes = {name: tuple(slot.tensor.shape) for name, slot in places.items()}
    problems = size_problems(facts.converter, facts.values, shapes)
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
    return _Export(_sharded(spec, shard_bytes), groups, widest)


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


def _sharded(spec: Spec, shard_bytes: int) -> dict[str, Spec]:
    """Divide the tensors into files of at most `shard_bytes` (a larger tensor has a file of its own)."""
    shards: list[Spec] = [{}]
    for key, entry in spec.items():
        if shards[-1] and _spec_bytes(shards[-1]) + _spec_bytes({key: entry}) > shard_bytes:
            shards.append({})
        shards[-1][key] = entry
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{index:05}-of-{len(shards):05}.safetensors": shard for index, shard in enumerate(shards, start=1)}


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
        texts |= {name: path.read_bytes() for name, path in _copied_files(facts.source_folder).items()}
        require_space(target, export.size_bytes + sum(len(text) for text in texts.values()))
        with published(target) as temporary:
            for name, spec in export.files.items():
                write_safetensors(temporary / name, spec, (next(tensors) for _ in spec))
            for name, text in texts.items():
                _write(temporary / name, text)
    except SaveError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _Interrupted(f"{target}: could not be written ({reason}); what was there before is as it was", tensors) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


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
    texts = {CONFIG_FILE: _json(config), FACTS_FILE: _json(own)}
    if len(export.files) > 1:
        sizes = [torch.Size(shape).numel() for spec in export.files.values() for _, shape in spec.values()]
        texts["model.safetensors.index.json"] = _json(
            {
                "metadata": {"total_parameters": sum(sizes), "total_size": export.size_bytes},
                "weight_map": {key: name for name, spec in export.files.items() for key in spec},
            }
        )
    return texts


def _copied_files(folder: Path | None) -> dict[str, Path]:
    """Return the files of the model's own folder that are copied, by name."""
    if folder is None or not folder.is_dir():
        return {}
    return {name: check_inside(folder, name) for name in COPIED_FILES if (folder / name).exists()}
