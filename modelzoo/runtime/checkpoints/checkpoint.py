"""Training checkpoints: everything a run needs to continue as if it had never stopped, on any number of ranks.

A checkpoint is a folder `step-<n>/` with a safetensors file a rank and kind, `state.json` and, written last, `manifest.json`; no
pickle anywhere. It appears by a rename, complete or not at all, and is never changed afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.errors import CheckpointError
from modelzoo.runtime.agreement import raise_together
from modelzoo.runtime.checkpoints.division import OF_EACH_RANK, plan_save
from modelzoo.runtime.checkpoints.manifest import Manifest, read_manifest
from modelzoo.runtime.checkpoints.reading import StateReader, read_state
from modelzoo.runtime.checkpoints.retention import verified
from modelzoo.runtime.checkpoints.saving import Save, begin_save
from modelzoo.runtime.checkpoints.state import (
    check_model,
    check_optimizer,
    load_full_state,
    load_optimizer_state,
    model_tensors,
    optimizer_tensors,
)
from modelzoo.runtime.process import World
from modelzoo.runtime.random_state import collect_random_state, restore_random_state, seed_from

__all__ = ["Identity", "load_checkpoint", "load_model", "prepare_save", "save_checkpoint"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint was made of; a resumed run must be made of the same."""

    config_hash: str
    data_fingerprint: str


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    world: World,
    state: Mapping[str, Any],
    identity: Identity,
) -> Path:
    """Publish `folder/step-<step>` with the state of all ranks and return it. Collective.

    Each rank writes the parts that it holds, straight from their memory; nothing is gathered. All ranks must see `folder`.

    Args:
        folder: Where the checkpoints of the run are; made if missing.
        step: Optimizer steps taken.
        model: Plain or sharded.
        optimizer: Over its parameters; None leaves its state out.
        world: The processes.
        state: What else the run needs (stream position, best metric, ...), JSON values; rank 0's are saved.
        identity: Of the config and the data.

    Raises:
        SaveError: No room, a full disk, or no right to write, on any rank. The temporary folder is removed; what was published
            before is intact.
        RankError: The ranks do not save the same step, identity or tensors.
    """
    save = prepare_save(folder, step, model=model, optimizer=optimizer, world=world, state=state, identity=identity)
    save.write(world.rank)
    return save.publish(world)


def prepare_save(
    folder: Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    world: World,
    state: Mapping[str, Any],
    identity: Identity,
) -> Save:
    """Do all of `save_checkpoint` that comes before writing; `Save.write` and `Save.publish` do the rest. Collective.

    The save holds this rank's tensors themselves, not copies of them.

    Raises:
        SaveError: As `save_checkpoint`.
        RankError: As `save_checkpoint`.
    """
    world.meet(f"the save of step {step}")
    kinds = {
        "model": model_tensors(model),
        "optimizer": optimizer_tensors(model, optimizer) if optimizer is not None else {},
        OF_EACH_RANK: {f"{_place(world)}/{name}": tensor for name, tensor in collect_random_state().items()},
    }
    facts = {"saved step": str(step), "saved config": identity.config_hash, "saved data": identity.data_fingerprint}
    plan = plan_save(world, facts, kinds)
    manifest = Manifest(
        step=step,
        world_size=world.world_size,
        config_hash=identity.config_hash,
        data_fingerprint=identity.data_fingerprint,
    )
    return begin_save(world, folder / f"step-{step}", manifest, plan, kinds, state)


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    world: World,
    verify: bool = True,
) -> dict[str, Any]:
    """Fill model, optimizer and random generators from a checkpoint and return the rest of its state. Collective.

    Each rank reads the part that it holds. The generators are restored last; those of a share of the data that did not exist when
    it was saved begin at a place of their own, the same in every such resume.

    Args:
        path: A `step-<n>` folder.
        model: Built as for the save, laid out over the ranks in any way.
        optimizer: Fresh, over its parameters; None leaves the saved one unread.
        world: The processes.
        verify: Compare all hashes first, each rank some; False where `find_latest` has just done so.

    Raises:
        CheckpointError: A file is missing, damaged or of another save, or names, shapes or dtypes differ.
    """
    if verify:
        raise_together(world, _attempt(lambda: verified(path, (world.rank, world.world_size))))
    loaded: dict[str, Any] = {}

    def load() -> None:
        manifest = read_manifest(path)
        loaded.update(read_state(path, manifest))
        reader = StateReader(path, manifest)
        check_model(model, reader.specs("model"))
        if optimizer is not None:
            check_optimizer(model, optimizer, reader.specs("optimizer"))
        load_full_state(model, reader.specs("model"), reader.of("model"))
        if optimizer is not None:
            load_optimizer_state(model, optimizer, reader.specs("optimizer"), reader.of("optimizer"))
        _restore_generators(reader, world)

    raise_together(world, _attempt(lambda: _named(path, load)))
    return loaded


def load_model(path: Path, model: nn.Module) -> None:
    """Fill a plain or sharded model from a checkpoint, and nothing else. Not collective.

    Raises:
        CheckpointError: A file is missing, damaged or of another save, or names, shapes or dtypes differ.
    """

    def load() -> None:
        reader = StateReader(path, verified(path))
        load_full_state(model, reader.specs("model"), reader.of("model"))

    _named(path, load)


def _place(world: World) -> str:
    """Return where this rank stands: its share of the data, and its place among the ranks that compute that share together."""
    return f"{world.data_rank}-{world.rank % world.tensor_size}"


def _restore_generators(reader: StateReader, world: World) -> None:
    """Give this rank the generators of its place; with another tensor degree, those of the first rank of its share of the data."""
    saved: dict[str, dict[str, Tensor]] = {}
    for name in reader.specs(OF_EACH_RANK):
        saved.setdefault(name.split("/")[0], {})[name.split("/", 1)[1]] = reader.read(OF_EACH_RANK, name)
    tensor_size = sum(place.startswith("0-") for place in saved)
    place = _place(world) if tensor_size == world.tensor_size else f"{world.data_rank}-0"
    if place in saved:
        restore_random_state(saved[place])
    elif "0-0" in saved:
        seed_from(saved["0-0"], world.data_rank)
    else:
        raise CheckpointError(f"generators: expected those of rank 0-0, found {sorted(saved)}")


def _named(path: Path, load: Callable[[], None]) -> None:
    """Load, with the checkpoint's folder in every error."""
    try:
        load()
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(f"{path}: {error}") from error


def _attempt(action: Callable[[], object]) -> Exception | None:
    """Return the error of an action, for `raise_together`."""
    try:
        action()
    except Exception as error:
        return error
    return None
