"""Training checkpoints: everything a run needs to continue as if it had never stopped, on any number of ranks.

A checkpoint is a folder `step-<n>/` with safetensors files, `state.json` and, written last, `manifest.json`; no pickle anywhere. It
appears by a rename, complete or not at all, and is never changed afterwards. Tensors are stored whole, gathered one at a time.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.errors import CheckpointError, SaveError
from modelzoo.runtime.agreement import agree, raise_together
from modelzoo.runtime.manifest import (
    MANIFEST,
    Manifest,
    Part,
    StoredTensor,
    check_files,
    manifest_text,
    read_manifest,
)
from modelzoo.runtime.process import World
from modelzoo.runtime.publish import check_space, publishing, readable_size, remove_folder, rename_away, write_text
from modelzoo.runtime.random_state import collect_random_state, restore_random_state
from modelzoo.runtime.reading import STATE, StateReader, read_state
from modelzoo.runtime.state import (
    full_state,
    load_full_state,
    load_optimizer_state,
    model_tensors,
    optimizer_tensors,
)
from modelzoo.runtime.tensors import TensorSpec, WrittenFile, specs_of, write_tensors

__all__ = [
    "Found",
    "Identity",
    "find_latest",
    "load_checkpoint",
    "load_model",
    "retain",
    "save_checkpoint",
    "set_aside",
    "step_folders",
]

log = logging.getLogger(__name__)

FOLDER_PATTERN = re.compile(r"step-(0|[1-9][0-9]{0,17})")
LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint was made of; a resumed run must be made of the same."""

    config_hash: str
    data_fingerprint: str


@dataclass(frozen=True, slots=True)
class Found:
    """The newest complete checkpoint of a folder."""

    path: Path
    manifest: Manifest
    skipped: tuple[str, ...]
    """Newer ones that cannot be used, each with the reason."""


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

    Args:
        folder: Where the checkpoints of the run are; made if missing.
        step: Optimizer steps taken.
        model: Plain or sharded.
        optimizer: Over its parameters; None leaves its state out.
        world: The processes.
        state: What else the run needs (stream position, best metric, ...), JSON values, the same on every rank.
        identity: Of the config and the data.

    Raises:
        SaveError: No room, a full disk, or no right to write. The temporary folder is removed; what was published before is intact.
        RankError: The ranks do not save the same step or the same tensors.
    """
    weights = model_tensors(model)
    moments = optimizer_tensors(model, optimizer) if optimizer is not None else {}
    names = json.dumps([[name, list(tensor.shape)] for name, tensor in [*weights.items(), *moments.items()]])
    agree(world, {"saved step": str(step), "saved tensors": names})
    generators = {
        f"{rank}/{name}": tensor for rank, some in enumerate(world.gather(collect_random_state())) for name, tensor in some.items()
    }
    groups = {"model": weights, "optimizer": moments, "random": generators}
    manifest = Manifest(
        step=step,
        world_size=world.world_size,
        config_hash=identity.config_hash,
        data_fingerprint=identity.data_fingerprint,
    )
    target = folder / f"step-{step}"
    error: Exception | None = None
    if world.is_main:
        error = _write_main(target, manifest, groups, state)
    else:
        _gather_only(groups)
    raise_together(world, error)
    return target


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    world: World,
    verify: bool = True,
) -> dict[str, Any]:
    """Fill model, optimizer and random generators from a checkpoint and return the rest of its state. Collective.

    Each rank reads its own rows. The generators are restored last; a rank that did not exist when it was saved keeps its own.

    Args:
        path: A `step-<n>` folder.
        model: Built as for the save, sharded over any number of ranks.
        optimizer: Fresh, over its parameters; None leaves the saved one unread.
        world: The processes.
        verify: Compare all hashes first; False where `find_latest` has just done so.

    Raises:
        CheckpointError: A file is missing, damaged or of another save, or names, shapes or dtypes differ.
    """
    raise_together(world, _attempt(lambda: _verify(path)) if verify and world.is_main else None)
    loaded: dict[str, Any] = {}

    def load() -> None:
        manifest = read_manifest(path)
        loaded.update(read_state(path, manifest))
        reader = StateReader(path, manifest)
        load_full_state(model, reader.specs("model"), reader.of("model"))
        if optimizer is not None:
            load_optimizer_state(model, optimizer, reader.specs("optimizer"), reader.of("optimizer"))
        own = [name.removeprefix(f"{world.rank}/") for name in reader.specs("random") if name.startswith(f"{world.rank}/")]
        if own:
            restore_random_state({name: reader.read("random", f"{world.rank}/{name}") for name in own})

    raise_together(world, _attempt(load))
    return loaded


def load_model(path: Path, model: nn.Module) -> None:
    """Fill a plain or sharded model from a checkpoint, and nothing else. Not collective.

    Raises:
        CheckpointError: A file is missing, damaged or of another save, or names, shapes or dtypes differ.
    """
    manifest = _verify(path)
    reader = StateReader(path, manifest)
    load_full_state(model, reader.specs("model"), reader.of("model"))


def find_latest(folder: Path) -> Found | None:
    """Return the newest complete checkpoint whose files have the sizes and hashes of its manifest, or None.

    Not collective: one rank looks and tells the others.
    """
    skipped: list[str] = []
    for path in step_folders(folder):
        try:
            manifest = _verify(path)
        except CheckpointError as error:
            skipped.append(str(error))
            log.warning("checkpoint %s skipped: %s", path.name, error)
            continue
        return Found(path, manifest, tuple(skipped))
    return None


def step_folders(folder: Path) -> list[Path]:
    """Return the folders named `step-<n>`, newest first, complete or not."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_PATTERN.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: -int(path.name.removeprefix("step-")))


def set_aside(folder: Path, newer_than: int) -> list[str]:
    """Take damaged checkpoints out of the way, so that their steps can be saved again; return their names.

    They are renamed; `sweep` removes them at the next start. Not collective.

    Args:
        folder: Where the checkpoints are.
        newer_than: Step of the newest complete one, -1 if there is none.
    """
    damaged = [path for path in step_folders(folder) if int(path.name.removeprefix("step-")) > newer_than]
    for path in damaged:
        rename_away(path, "damaged")
    return [path.name for path in damaged]


def retain(folder: Path, keep_last: int, keep: Collection[int] = ()) -> list[str]:
    """Remove old checkpoints and return their names. Not collective: one rank does it, after a save.

    The newest `keep_last` complete ones stay, and at least two: should the newest be damaged later, the run can still go on. Those
    that are not complete do not count; they are removed only when a complete one is newer.

    Args:
        folder: Where the checkpoints are.
        keep_last: At least 1.
        keep: Steps that stay whatever their age (the best one).
    """
    complete: list[int] = []
    removed = []
    for path in step_folders(folder):
        step = int(path.name.removeprefix("step-"))
        if step in keep:
            continue
        try:
            check_files(path, read_manifest(path), hashes=False)
            complete.append(step)
            doomed = len(complete) > max(keep_last, LEAST_KEPT)
        except CheckpointError:
            doomed = bool(complete)
        if doomed:
            remove_folder(path)
            removed.append(path.name)
    return removed


def _write_main(
    target: Path, manifest: Manifest, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> Exception | None:
    """Write and publish on rank 0. Whatever fails here, all tensors are gathered: the other ranks take part in every one."""
    specs = {kind: specs_of(tensors) for kind, tensors in groups.items()}
    pending = {kind: full_state(tensors) for kind, tensors in groups.items()}
    needed = sum(spec.size_bytes for some in specs.values() for spec in some.values())
    error: Exception | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_space(target.parent, needed, f"save of step {manifest.step}")
        with publishing(target) as temporary:
            files: dict[str, WrittenFile] = {}
            stored: dict[str, StoredTensor] = {}
            for kind in groups:
                name = f"{kind}.safetensors"
                files[name] = write_tensors(temporary / name, specs[kind], pending[kind], {"generation": manifest.generation})
                stored.update(_stored_whole(kind, name, specs[kind]))
            text = json.dumps({"generation": manifest.generation, "step": manifest.step, "state": dict(state)}, indent=1)
            files[STATE] = write_text(temporary / STATE, text + "\n")
            write_text(temporary / MANIFEST, manifest_text(replace(manifest, files=files, tensors=stored)))
    except SaveError as refused:
        error = refused
    except OSError as failed:
        error = SaveError(
            f"save of step {manifest.step} at {target}: {failed.strerror or failed}; it needs {readable_size(needed)}; "
            "what was saved before is intact"
        )
        error.__cause__ = failed
    except Exception as unexpected:  # rule 30: told to all ranks by the caller, which raises it
        error = unexpected
    for tensors in pending.values():
        for _ in tensors:
            pass
    return error


def _gather_only(groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Take part in the gathering of every tensor that rank 0 writes."""
    for tensors in groups.values():
        for _ in full_state(tensors):
            pass


def _stored_whole(kind: str, file: str, specs: Mapping[str, TensorSpec]) -> dict[str, StoredTensor]:
    return {
        f"{kind}/{name}": StoredTensor(spec.shape, spec.dtype_name, (Part(file, name, (0,) * len(spec.shape), spec.shape),))
        for name, spec in specs.items()
    }


def _verify(path: Path) -> Manifest:
    """Return the manifest of a checkpoint all of whose files are as they were written."""
    manifest = read_manifest(path)
    if path.name != f"step-{manifest.step}":
        raise CheckpointError(f"{path / MANIFEST}: step: expected that of the folder, found {manifest.step}")
    check_files(path, manifest)
    return manifest


def _attempt(action: Callable[[], object]) -> Exception | None:
    """Return the error of an action, for `raise_together`."""
    try:
        action()
    except Exception as error:
        return error
    return None
