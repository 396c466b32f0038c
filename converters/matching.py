"""What a model needs against what a file holds: every disagreement is found before a tensor is read."""

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from modelzoo.converters.mapping import Group, Mapping
from modelzoo.converters.ops import Shape
from modelzoo.errors import CheckpointError, closest, listing

__all__ = ["Match", "TensorInfo", "match", "raise_if_unfit"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_ADAPTERS = ("lora_", "modules_to_save", "base_model.model.", "adapter_")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file says about one of its tensors.

    Attributes:
        shape: Its sizes.
        dtype: Its element type.
        file: The name of the file that holds it.
    """

    shape: Shape
    dtype: torch.dtype
    file: str

    def __str__(self) -> str:
        return f"{_dtype_name(self.dtype)} {list(self.shape)}"


@dataclass
class Match:
    """How a file fits a model.

    Attributes:
        reads: (group, keys of the file in the order of the group's `theirs`), for all that is read.
        new: Our names that the file has no tensor for and that may start anew.
        ignored: (key, reason) of what is left out.
        equal: (alias key, target key) pairs that must hold the same values.
        problems: One line for each disagreement; empty when the file fits.
        hint: What is probably wrong, as a sentence, or "".
    """

    reads: list[tuple[Group, tuple[str, ...]]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    equal: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hint: str = ""


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def match(
    mapping: Mapping,
    model: MappingABC[str, Shape],
    file: MappingABC[str, TensorInfo],
    *,
    new_parts: Sequence[str] = (),
    required: MappingABC[str, str] | None = None,
    fresh: MappingABC[str, str] | None = None,
    allow_float64: bool = False,
) -> Match:
    """Compare a model's own tensors with those of a file.

    Args:
        mapping: The table of names.
        model: Shape of each of the model's tensors, by our name.
        file: What the file holds, by its own keys.
        new_parts: Beginnings of our names, such as "head.", that a file may lack as a whole; a part that the file has in part is
            an error.
        required: Those of them that a file may not lack here, with the reason as a sentence.
        fresh: Beginnings of our names that are not read even if the file has them, with the reason.
        allow_float64: Whether float64 may be read; the caller has then stated the dtype that it becomes.
    """
    foreign = _foreign(file)
    if foreign:
        return Match(problems=foreign)
    result = Match()
    keys = _canonical_keys(mapping, file, result)
    required = required or {}
    optional = [part for part in new_parts if part not in required]
    used = _read(mapping, model, file, keys, result, new_parts=optional, fresh=fresh or {}, allow_float64=allow_float64)
    _account_for_rest(mapping, file, keys, used, result)
    if result.problems:
        result.hint = _hint(mapping, model, file, keys) or _part_hint(result, model, file, new_parts)
        result.hint = result.hint or _required_hint(mapping, model, result, required)
    return result


def _foreign(file: MappingABC[str, TensorInfo]) -> list[str]:
    """Return a line for keys that no table can take: wrapped models and adapters."""
    for wrapper in _WRAPPERS:
        wrapped = [key for key in file if wrapper in key.split(".")]
        if wrapped:
            return [
                f"{file[wrapped[0]].file}: {wrapped[0]}: expected plain names, found the wrapper prefix {wrapper + '.'!r} in "
                f"{len(wrapped)} of {len(file)} keys. Save the model without its wrapper, or strip {wrapper + '.'!r} from the keys"
            ]
    adapters = [key for key in file if any(mark in key for mark in _ADAPTERS)]
    if adapters:
        return [
            f"{file[adapters[0]].file}: {adapters[0]}: expected the model's own weights, found {len(adapters)} adapter keys. "
            "Attach the adapter first (load the base model, then the adapter), or merge it before saving"
        ]
    return []


def _canonical_keys(mapping: Mapping, file: MappingABC[str, TensorInfo], result: Match) -> dict[str, str]:
    """Return the file's key of each canonical name."""
    keys: dict[str, str] = {}
    for key in file:
        name = mapping.canonical(key)
        if name in keys:
            line = f"{file[key].file}: {key}: expected once, found also as {keys[name]}. Remove one of them"
            result.problems.append(line)
        else:
            keys[name] = key
    return keys


def _read(
    mapping: Mapping,
    model: MappingABC[str, Shape],
    file: MappingABC[str, TensorInfo],
    keys: dict[str, str],
    result: Match,
    *,
    new_parts: Sequence[str],
    fresh: MappingABC[str, str],
    allow_float64: bool,
) -> set[str]:
    """Fill `reads`, `new` and the problems of what is read; return the canonical names that are accounted for."""
    instead = {tie.target: tie.alias for tie in mapping.tied if tie.target not in keys and tie.alias in keys}
    used: set[str] = set()
    absent: list[tuple[Group, str]] = []
    for group in mapping.plan(model):
        reason = next((why for part, why in fresh.items() if group.ours[0].startswith(part)), None)
        if reason is not None:
            result.new += group.ours
            result.ignored += [(keys[name], reason) for name in group.theirs if name in keys]
            used.update(group.theirs)
            continue
        names = tuple(instead.get(name, name) for name in group.theirs)
        missing = [name for name in names if name not in keys]
        used.update(names)
        if missing:
            absent += [(group, name) for name in missing]
        else:
            found = tuple(keys[name] for name in names)
            result.reads.append((group, found))
            result.problems += _disagreements(group, found, model, file, allow_float64)
    _sort_out_absent(mapping, model, absent, file, result, new_parts)
    return used


def _disagreements(
    group: Group, keys: tuple[str, ...], model: MappingABC[str, Shape], file: MappingABC[str, TensorInfo], allow_float64: bool
) -> list[str]:
    lines = []
    for key, shape in zip(keys, group.rule.op.inverse.shapes([model[name] for name in group.ours]), strict=True):
        info = file[key]
        if info.shape != shape:
            lines.append(f"{info.file}: {key}: expected shape {list(shape)}, found {list(info.shape)}")
        if info.dtype == torch.float64 and not allow_float64:
            lines.append(f"{info.file}: {key}: expected float32, bfloat16 or float16, found float64. Pass dtype= to round it")
        elif info.dtype not in (*_FLOATS, torch.float64):
            found = _dtype_name(info.dtype)
            lines.append(f"{info.file}: {key}: expected float32, bfloat16 or float16, found {found}; it is never cast")
    return lines


def _sort_out_absent(
    mapping: Mapping,
    model: MappingABC[str, Shape],
    absent: list[tuple[Group, str]],
    file: MappingABC[str, TensorInfo],
    result: Match,
    new_parts: Sequence[str],
) -> None:
    """Divide what the file lacks into parts that start anew and errors."""
    read = [name for group, _ in result.reads for name in group.ours]
    known = {mapping.canonical(key) for key in file}
    read += [group.ours[0] for group, _ in absent if known.intersection(group.theirs)]
    anew = [part for part in new_parts if not any(name.startswith(part) for name in read)]
    files = ", ".join(dict.fromkeys(info.file for info in list(file.values())[:1000])) or "the checkpoint"
    for group, name in absent:
        if any(group.ours[0].startswith(part) for part in anew):
            result.new += [ours for ours in group.ours if ours not in result.new]
            continue
        shapes = group.rule.op.inverse.shapes([model[ours] for ours in group.ours])
        shape = dict(zip(group.theirs, shapes, strict=True)).get(name)
        result.problems.append(f"{files}: {mapping.written(name)}: expected a tensor of shape {list(shape or ())}, found nothing")


def _account_for_rest(
    mapping: Mapping, file: MappingABC[str, TensorInfo], keys: dict[str, str], used: set[str], result: Match
) -> None:
    """Sort the keys that nothing has read into second names, ignored ones and unexpected ones."""
    ties = {tie.alias: tie for tie in mapping.tied}
    for name, key in keys.items():
        if name in used:
            continue
        tie = ties.get(name)
        reason = mapping.ignored(name)
        if tie is not None and tie.target in used and tie.target in keys:
            target = keys[tie.target]
            if tie.must_equal:
                result.equal.append((key, target))
            result.ignored.append((key, f"second name of {target}"))
        elif reason is not None:
            result.ignored.append((key, reason))
        else:
            near = closest(name, used - set(keys)) if len(result.problems) < 20 else []
            hint = f". Is it {near[0]}?" if near else ""
            result.problems.append(f"{file[key].file}: {key}: expected no such key, found {file[key]}{hint}")


def _numbers(mapping: Mapping, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return for each placeholder the numbers that the names carry, with the first name of each."""
    numbers: dict[str, dict[int, str]] = {}
    for name in names:
        located = mapping.locate(name)
        for key, value in (located[1] if located else {}).items():
            numbers.setdefault(key, {}).setdefault(value, name)
    return numbers


def _hint(mapping: Mapping, model: MappingABC[str, Shape], file: MappingABC[str, TensorInfo], keys: dict[str, str]) -> str:
    """Return the one sentence that explains many of the problems at once, or ""."""
    wanted = _numbers(mapping, [name for group in mapping.plan(model) for name in group.theirs])
    found = _numbers(mapping, list(keys))
    for placeholder, numbers in wanted.items():
        have = found.get(placeholder, {})
        if have and set(have) != set(numbers):
            first = min(set(have) ^ set(numbers))
            name = mapping.written({**numbers, **have}[first])
            return (
                f"The config says {len(numbers)} {placeholder}s, the file has {len(have)}; the first key that differs is {name}. "
                "Use the config and the weights of one model."
            )
    prefix = _common_prefix(mapping, keys)
    if prefix:
        return f"The keys carry the prefix {prefix!r}, which this family does not use; rename them without it."
    if not any(mapping.locate(name) for name in keys):
        return f"No key of the file is one of this family's; its first key is {next(iter(file), '(none)')}."
    return ""


def _part_hint(result: Match, model: MappingABC[str, Shape], file: MappingABC[str, TensorInfo], new_parts: Sequence[str]) -> str:
    """Say how to go on when a part that could start anew is all that disagrees."""
    for part in new_parts:
        reads = [(group, keys) for group, keys in result.reads if group.ours[0].startswith(part)]
        unfit = sum(len(_disagreements(group, keys, model, file, allow_float64=True)) for group, keys in reads)
        if unfit and unfit == len(result.problems):
            name = part.rstrip(".")
            return f"Only the {name} disagrees: use the number of labels that the file has, or start a new {name}."
    return ""


def _required_hint(mapping: Mapping, model: MappingABC[str, Shape], result: Match, required: MappingABC[str, str]) -> str:
    """Say why a part that the file lacks may not start anew."""
    have = {name for group, _ in result.reads for name in group.ours} | set(result.new)
    lacking = [group.ours[0] for group in mapping.plan(model) if group.ours[0] not in have]
    return next((reason for part, reason in required.items() if any(name.startswith(part) for name in lacking)), "")


def _common_prefix(mapping: Mapping, keys: MappingABC[str, str]) -> str:
    """Return a first component that hides at least half of the keys from the table, or ""."""
    hidden: dict[str, int] = {}
    for name in keys:
        first, _, rest = name.partition(".")
        if rest and mapping.locate(name) is None and mapping.locate(mapping.canonical(rest)) is not None:
            hidden[f"{first}."] = hidden.get(f"{first}.", 0) + 1
    prefix, count = max(hidden.items(), key=lambda item: item[1], default=("", 0))
    return prefix if 2 * count >= len(keys) else ""


def raise_if_unfit(result: Match, folder: str) -> None:
    """Raise one error that lists every problem of a match.

    Raises:
        CheckpointError: There is at least one problem.
    """
    if result.problems:
        count = len(result.problems)
        hint = f"\n{result.hint}" if result.hint else ""
        plural = "s" if count > 1 else ""
        raise CheckpointError(
            f"{folder}: the checkpoint does not fit the model, {count} problem{plural}:\n{listing(result.problems)}{hint}"
        )
