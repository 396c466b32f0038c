"""Where our maps and tables stand in transformers' model, derived from the converter's table of weights.

One module of transformers may hold several of our maps side by side in its outputs (GPT-2's `c_attn` is query, key and value). A
change of the whole is then exactly one change a map, of the same A, with the rows of B that belong to the map.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modelzoo.converters import Mapping as NameMapping
from modelzoo.converters.ops import Chain, Copy, Operation, Split, Transpose
from modelzoo.errors import CheckpointError

__all__ = ["Place", "parts_to_save", "places", "target_names"]


@dataclass(frozen=True, slots=True)
class Place:
    """A module of transformers and what it is here."""

    theirs: str
    """Its path in the class of the task."""
    ours: tuple[str, ...]
    """Our maps or table, in the order of its outputs."""
    out_features: tuple[int, ...]
    """Outputs of each; rows for a table."""
    is_transposed: bool
    """Whether its weight is (in, out), as that of transformers' Conv1D."""


def places(mapping: NameMapping, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Place], dict[str, str]]:
    """Return the places of a model's weights.

    Args:
        mapping: The family's table for the task.
        shapes: Of all tensors of the model, by our names.

    Returns:
        By our module's name, its place; and by our module's name, why there is none.
    """
    found: dict[str, Place] = {}
    refused: dict[str, str] = {}
    for group in mapping.plan(shapes):
        modules = tuple(name.removesuffix(".weight") for name in group.ours)
        if not all(name.endswith(".weight") and len(shapes[name]) == 2 for name in group.ours):
            continue
        kind = _kind(group.rule.op)
        theirs = [mapping.written(name) for name in group.theirs]
        if kind is None or len(theirs) != 1 or not theirs[0].endswith(".weight"):
            refused |= dict.fromkeys(modules, f"transformers keeps it as {', '.join(theirs)}, made by {group.rule.op}")
            continue
        place = Place(
            theirs=theirs[0].removesuffix(".weight"),
            ours=modules,
            out_features=tuple(shapes[name][0] for name in group.ours),
            is_transposed=kind == "transposed",
        )
        found |= dict.fromkeys(modules, place)
    return found, refused


def _kind(op: Operation) -> str | None:
    """Return how transformers keeps a weight, our maps side by side in its outputs: "plain" or "transposed"; None otherwise."""
    if isinstance(op, Copy):
        return "plain"
    if isinstance(op, Transpose):
        return "transposed"
    if isinstance(op, Split) and op.dim == 0:
        return "plain"
    if isinstance(op, Chain) and isinstance(op.first, Split) and op.first.dim == 1 and isinstance(op.second, Transpose):
        return "transposed"
    return None


def target_names(chosen: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the shortest ends of names by which PEFT finds the chosen modules and none of the others.

    PEFT takes a module whose path is a target or ends in a dot and a target.

    Args:
        chosen: Paths of modules.
        others: Paths of all other modules with weights.
    """
    others = set(others)
    # every end of the others' paths, so that a candidate is looked up and not searched for
    taken = {end for path in others for end in _ends(path)}
    names: dict[str, None] = {}
    for path in chosen:
        names[next((end for end in _ends(path) if end not in taken), path)] = None
    return list(names)


def _ends(path: str) -> list[str]:
    """Return the ends of a path, the shortest first, the path itself last."""
    parts = path.split(".")
    return [".".join(parts[index:]) for index in range(len(parts) - 1, -1, -1)]


def parts_to_save(keys: Sequence[str], every: Iterable[str]) -> list[str]:
    """Return PEFT's `modules_to_save` of tensors that are trained whole.

    Args:
        keys: transformers' names of those tensors.
        every: Its names of all tensors of the model.

    Returns:
        The first component of a name where all tensors below it are trained (a head), otherwise the module that holds the tensor.

    Raises:
        CheckpointError: A tensor stands in no module of its own.
    """
    chosen, found = set(keys), dict[str, None]()
    partly = {key.partition(".")[0] for key in every if key not in chosen}
    for key in keys:
        root, module = key.partition(".")[0], key.rpartition(".")[0]
        if not module:
            raise CheckpointError(
                f"{key}: PEFT saves whole modules, found a tensor of the model itself; leave it out of train_also"
            )
        found[module if root in partly else root] = None
    return list(found)
