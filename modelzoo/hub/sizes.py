"""A config against the headers of the weights, before anything of the config's size is built."""

from pathlib import Path

from modelzoo.converters import Mapping as NameMapping
from modelzoo.converters import TensorInfo
from modelzoo.converters.mapping import Rule
from modelzoo.errors import CheckpointError, listing
from modelzoo.hub.checkpoint import open_checkpoint
from modelzoo.hub.facts import ModelFacts

__all__ = ["check_sizes"]


def check_sizes(folder: Path, facts: ModelFacts, *, allow_pickle: bool = False) -> None:
    """Compare the sizes that a config states with the shapes in the weights' headers; no value is read, no model is needed.

    A model of the config's sizes is built before its weights are compared name by name. This check comes before that, so that a
    config with sizes of another model, or of no model, costs milliseconds and no memory. The head is left to the full comparison.

    Args:
        folder: The model folder.
        facts: What the config says.
        allow_pickle: Read an old .bin file if there is nothing better.

    Raises:
        CheckpointError: The files are broken, or some sizes differ: key, both shapes, and the fields that state them.
    """
    mapping, converter = facts.mapping, facts.converter
    with open_checkpoint(folder, allow_pickle=allow_pickle) as checkpoint:
        file = {mapping.canonical(key): info for key, info in checkpoint.tensors.items()}
    patterns = [(Rule(pattern, pattern), fields) for pattern, fields in converter.sizes.items()]
    problems = []
    for group in mapping.expected(dict.fromkeys(converter.counts, 1)):
        for rule, fields in patterns:
            if len(group.ours) > 1 or group.ours[0].startswith("head.") or rule.match(group.ours[0], side="ours") is None:
                continue
            shape = tuple(int(facts.values[name]) for name in fields)
            for key, wanted in zip(group.theirs, group.rule.op.inverse.shapes([shape]), strict=True):
                if key in file and file[key].shape != wanted:
                    stated = ", ".join(f"{name}={facts.values[name]}" for name in fields)
                    where = f"{file[key].file}: {mapping.written(key)}"
                    problems.append(f"{where}: expected shape {list(wanted)} ({stated}), found {list(file[key].shape)}")
    problems += _counts(facts, mapping, file)
    if problems:
        raise CheckpointError(f"{folder}: the config and the weights are not of one model:\n{listing(problems)}")


def _counts(facts: ModelFacts, mapping: NameMapping, file: dict[str, TensorInfo]) -> list[str]:
    """Return a line for each placeholder of which the file has another number than the config."""
    found: dict[str, set[int]] = {}
    for key in file:
        located = mapping.locate(key)
        for placeholder, number in (located[1] if located else {}).items():
            found.setdefault(placeholder, set()).add(number)
    lines = []
    for placeholder, field in facts.converter.counts.items():
        stated, numbers = int(facts.values[field]), found.get(placeholder, set())
        if numbers and len(numbers) != stated:
            lines.append(f"config.json: expected {len(numbers)} {placeholder}s, as the weights have, found {field}={stated}")
    return lines
