"""Reading a checkpoint into a model: strict, tensor by tensor, each rank its own part."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from modelzoo.converters import Group, Match, match
from modelzoo.converters.matching import raise_if_unfit
from modelzoo.converters.ops import Copy
from modelzoo.errors import CheckpointError, listing
from modelzoo.hub.checkpoint import Checkpoint, open_checkpoint
from modelzoo.hub.facts import ModelFacts
from modelzoo.hub.files import revision_of, shown
from modelzoo.hub.model_tensors import Slot, is_filled_in_place, put_local, slots
from modelzoo.hub.ranks import agreed
from modelzoo.quantities import counted
from modelzoo.sharded import is_sharded, local_box

__all__ = ["LoadReport", "load_weights"]

_WRITING = ("causal_lm", "seq2seq_lm")
"""Tasks whose head is never drawn anew: it would write at random."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did.

    Attributes:
        loaded: How many of the model's tensors came from the file.
        new: The model's tensors that did not; their values are still to be made.
        ignored: (key, reason) of what the file holds and the model does not use.
        dtype: What the model's tensors are now.
        folder: The model folder.
        revision: Its commit, when it is a snapshot of the Hugging Face cache.
        size_bytes: Bytes of the tensors loaded (on this rank).
        seconds: How long it took.
    """

    loaded: int
    new: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    dtype: torch.dtype
    folder: Path
    revision: str | None
    size_bytes: int
    seconds: float

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        at = f" at {self.revision[:12]}" if self.revision else ""
        size = f"{self.size_bytes / 2**20:.1f} MiB of {dtype}, {self.seconds:.2f} s"
        lines = [f"Loaded {counted(self.loaded, 'tensor')} ({size}) from {self.folder}{at}"]
        notes = []
        if self.new:
            notes.append(f"new, not in the file: {_few(self.new)}")
        if self.ignored:
            reasons = dict.fromkeys(reason for _, reason in self.ignored)
            notes.append(f"left out: {len(self.ignored)} ({'; '.join(reasons)})")
        return "\n".join([*lines, *(["  " + "; ".join(notes)] if notes else [])])


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def load_weights(
    model: nn.Module,
    folder: Path,
    facts: ModelFacts,
    *,
    dtype: torch.dtype | Literal["auto"] = "auto",
    allow_pickle: bool = False,
    new_head: bool | Collection[str] = False,
) -> LoadReport:
    """Load a model folder's weights into a model.

    All names, shapes and dtypes are compared first; a plain model is changed only when every value has been read and is finite.
    A plain parameter takes the memory that was read (no copy; its identity and ties stay), one on meta is replaced, a DTensor or
    one in a lower tier is filled where it is: each rank reads its own part. Tensors in the report's `new` are left as they are.

    Args:
        model: Its tensors decide what must be in the file.
        folder: The model folder.
        facts: What the model is.
        dtype: What plain tensors become; "auto": the file's, the widest when it has several. DTensors keep their own.
        allow_pickle: Read an old .bin file if there is nothing better.
        new_head: Leave the file's head out even if it has one, or the tensors of these names alone, which come from elsewhere. A
            head of another task is left out by itself.

    Raises:
        CheckpointError: The files are broken, or do not fit the model, or hold NaN or infinity, or two names of one tensor hold
            different values. On every rank, when any rank finds it.
    """
    started = time.perf_counter()
    places = slots(model)
    sharded = any(is_sharded(slot.tensor) for slot in places.values())
    with _opened(folder, allow_pickle, sharded) as checkpoint:
        fit = match(
            facts.mapping,
            {name: tuple(slot.tensor.shape) for name, slot in places.items()},
            checkpoint.tensors,
            new_parts=facts.converter.new_parts,
            required=_required(facts),
            fresh=_fresh(facts, new_head),
            allow_float64=dtype != "auto",
        )
        fit.problems = agreed(fit.problems, together=sharded)
        raise_if_unfit(fit, str(folder))
        target = _target_dtype(fit, checkpoint, dtype)
        values, problems = _read_all(checkpoint, fit, places, target)
        problems += _untied(checkpoint, fit)
    problems = agreed(problems, together=sharded)
    if problems:
        raise CheckpointError(f"{folder}: the checkpoint's values cannot be used:\n{listing(problems)}")
    for name, value in values.items():
        places[name].put(value)
    _convert_new(fit, places, target)
    loaded = [places[name].tensor for group, _ in fit.reads for name in group.ours]
    return LoadReport(
        loaded=len(loaded),
        new=tuple(fit.new),
        ignored=tuple(fit.ignored),
        dtype=loaded[0].dtype if loaded else target,
        folder=folder,
        revision=revision_of(folder),
        size_bytes=sum(_local(tensor).nbytes for tensor in loaded),
        seconds=time.perf_counter() - started,
    )


def _opened(folder: Path, allow_pickle: bool, together: bool) -> Checkpoint:
    problems: list[str] = []
    checkpoint = Checkpoint(folder)
    try:
        checkpoint = open_checkpoint(folder, allow_pickle=allow_pickle)
    except CheckpointError as error:
        problems = [str(error)]
    problems = agreed(problems, together=together)
    if problems:
        checkpoint.close()
        raise CheckpointError("\n".join(problems))
    return checkpoint


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor


def _required(facts: ModelFacts) -> Mapping[str, str]:
    """Return the parts that may not start anew, with the reason as a sentence."""
    saved_as = facts.converter.saved_as(facts.source or {})
    if saved_as and facts.converter.head_task(facts.source or {}) == facts.task != "base":
        name = shown(saved_as[0])
        return {"head.": f"The config.json says {name}, so the file must hold that head; load another task= if it is not there."}
    if facts.task in _WRITING:
        reason = (
            "The config does not tie the head to the token table, and a language model's head is never drawn anew; "
            'if they are one, set "tie_word_embeddings": true in config.json.'
        )
        return {"head.": reason}
    return {}


def _fresh(facts: ModelFacts, new_head: bool | Collection[str]) -> Mapping[str, str]:
    """Return the parts that are not read, with the reason: a head that is not of this model's task."""
    if not isinstance(new_head, bool):
        return dict.fromkeys(new_head, "trained since, and kept with the adapter")
    if new_head:
        return {"head.": "a new head was asked for"}
    saved_as = facts.converter.saved_as(facts.source or {})
    head_task = facts.converter.head_task(facts.source or {})
    if saved_as and head_task not in (facts.task, "base") and facts.task not in _WRITING:
        return {"head.": f"the head of {shown(saved_as[0])}"}
    return {}


def _target_dtype(fit: Match, checkpoint: Checkpoint, dtype: torch.dtype | Literal["auto"]) -> torch.dtype:
    if dtype != "auto":
        if not dtype.is_floating_point:
            raise CheckpointError(f"dtype={dtype}: expected a float dtype, such as torch.float32")
        return dtype
    found = {checkpoint.tensors[key].dtype for _, keys in fit.reads for key in keys}
    target = torch.float32 if len(found) != 1 else next(iter(found))
    return target


def _read_all(
    checkpoint: Checkpoint, fit: Match, places: Mapping[str, Slot], target: torch.dtype
) -> tuple[dict[str, Tensor], list[str]]:
    """Read every tensor: what is filled in place is filled at once, the others are returned; values not finite are reported."""
    values: dict[str, Tensor] = {}
    problems: list[str] = []
    for group, keys in fit.reads:
        if any(is_filled_in_place(places[name].tensor) for name in group.ours):
            problems += _read_in_place(checkpoint, group, keys, places)
            continue
        tensors = [checkpoint.read(key) for key in keys]
        converted = group.to_ours(tensors)
        for name, tensor in zip(group.ours, converted, strict=True):
            values[name] = places[name].kept(tensor, target)
        used = [values[name] for name in group.ours]
        plain = all(type(each) is Tensor for each in used)
        problems += _not_finite(checkpoint, keys, tensors, used if plain else tensors)
    return values, problems


def _read_in_place(checkpoint: Checkpoint, group: Group, keys: tuple[str, ...], places: Mapping[str, Slot]) -> list[str]:
    """Fill this rank's part; a reading error becomes a line, so that all ranks go on to the place where they agree."""
    slot = places[group.ours[0]]
    try:
        if isinstance(group.rule.op, Copy) and len(keys) == 1 and is_filled_in_place(slot.tensor):
            box = list(local_box(slot.tensor)) if is_sharded(slot.tensor) else None
            tensors = [checkpoint.read(keys[0], box)]
            put_local(slot, group.ours[0], tensors[0], whole=False)
        else:
            tensors = [checkpoint.read(key) for key in keys]
            for name, tensor in zip(group.ours, group.to_ours(tensors), strict=True):
                if is_filled_in_place(places[name].tensor):
                    put_local(places[name], name, tensor, whole=True)
                else:
                    places[name].put(places[name].kept(tensor, places[name].tensor.dtype))
    except CheckpointError as error:
        return [str(error)]
    return _not_finite(checkpoint, keys, tensors, tensors)


def _finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: a sum that is finite had finite terms, and costs a tenth of looking at each."""
    total = tensor.sum(dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    return bool(total.isfinite()) or bool(tensor.isfinite().all())


def _not_finite(checkpoint: Checkpoint, keys: tuple[str, ...], read: list[Tensor], used: list[Tensor]) -> list[str]:
    if all(_finite(tensor) for tensor in used):
        return []
    lines = []
    for key, tensor in zip(keys, read, strict=True):
        count = tensor.numel() - int(tensor.isfinite().sum())
        if count:
            where = f"{checkpoint.tensors[key].file}: {shown(key)}"
            lines.append(f"{where}: expected finite values, found NaN or infinity in {count} of {tensor.numel()}")
    if not lines:
        where = f"{checkpoint.tensors[keys[0]].file}: {shown(keys[0])}"
        lines = [f"{where}: expected values within the range of {used[0].dtype}, found larger ones; load it in a wider dtype"]
    return lines


def _untied(checkpoint: Checkpoint, fit: Match) -> list[str]:
    """Return a line for each second name whose values are not those of the first."""
    lines = []
    for alias, target in fit.equal:
        first, second = checkpoint.tensors[alias], checkpoint.tensors[target]
        if first.shape != second.shape or not torch.equal(checkpoint.read(alias), checkpoint.read(target)):
            lines.append(
                f"{first.file}: {shown(alias)}: expected the values of {shown(target)}, because the config ties the two, found "
                'others. Set "tie_word_embeddings": false in config.json if they were trained apart'
            )
    return lines


def _convert_new(fit: Match, places: Mapping[str, Slot], target: torch.dtype) -> None:
    """Give the tensors that the file lacks the dtype of the others, and memory if they have none."""
    for name in fit.new:
        tensor = places[name].tensor
        if is_filled_in_place(tensor):
            continue
        if tensor.device.type == "meta":
            places[name].put(torch.empty(tensor.shape, dtype=target))
        elif tensor.dtype != target:
            places[name].put(tensor.detach().to(target))
