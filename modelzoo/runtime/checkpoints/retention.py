"""The checkpoints of a folder: which is the newest complete one, which are damaged, which may go."""

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from modelzoo.errors import CheckpointError
from modelzoo.runtime.checkpoints.manifest import MANIFEST, Manifest, check_files, read_manifest
from modelzoo.runtime.checkpoints.publish import remove_folder, set_damaged_aside
from modelzoo.runtime.process import World

__all__ = ["Found", "find_latest", "retain", "set_aside", "step_folders", "verified"]

log = logging.getLogger(__name__)

FOLDER_PATTERN = re.compile(r"step-(0|[1-9][0-9]{0,17})")
LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Found:
    """The newest complete checkpoint of a folder."""

    path: Path
    manifest: Manifest
    skipped: tuple[str, ...]
    """Newer ones that cannot be used, each with the reason."""


def find_latest(folder: Path, world: World | None = None) -> Found | None:
    """Return the newest complete checkpoint whose files have the sizes and hashes of its manifest, or None if there is none at all.

    Args:
        folder: Where the checkpoints are.
        world: The processes, which share the reading of the files; then it is collective. None: this process looks alone.

    Raises:
        CheckpointError: There are checkpoints and none can be used. A run that began again would cover up what was lost.
    """
    world = world or World(0, 1, 0, torch.device("cpu"), 1.0)
    skipped: list[str] = []
    for name in world.broadcast([path.name for path in step_folders(folder)] if world.is_main else []):
        manifest, problem = None, None
        try:
            manifest = verified(folder / name, (world.rank, world.world_size))
        except CheckpointError as error:
            problem = str(error)
        problem = next((text for text in world.gather(problem) if text is not None), None)
        if problem is None and manifest is not None:
            return Found(folder / name, manifest, tuple(skipped))
        skipped.append(str(problem))
        if world.is_main:
            log.warning("checkpoint %s skipped: %s", name, problem)
    if skipped:
        reasons = "\n".join(f"  {reason}" for reason in skipped)
        raise CheckpointError(f"{folder}: none of its checkpoints can be used; put one back, or start a new run\n{reasons}")
    return None


def verified(path: Path, share: tuple[int, int] = (0, 1)) -> Manifest:
    """Return the manifest of a checkpoint all of whose files are as they were written.

    Args:
        path: A `step-<n>` folder.
        share: Which part of the files is read for its hash, of how many.

    Raises:
        CheckpointError: The first thing that is not as it was.
    """
    manifest = read_manifest(path)
    if path.name != f"step-{manifest.step}":
        raise CheckpointError(f"{path / MANIFEST}: step: expected that of the folder, found {manifest.step}")
    check_files(path, manifest, share=share)
    return manifest


def step_folders(folder: Path) -> list[Path]:
    """Return the folders named `step-<n>`, newest first, complete or not."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_PATTERN.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: -_step(path))


def set_aside(folder: Path, newer_than: int) -> list[str]:
    """Take damaged checkpoints out of the way, so that their steps can be saved again; return their new names.

    They are renamed to `damaged-...` and stay until a person removes them. Not collective.

    Args:
        folder: Where the checkpoints are.
        newer_than: Step of the newest complete one.
    """
    return [set_damaged_aside(path).name for path in step_folders(folder) if _step(path) > newer_than]


def retain(folder: Path, keep_last: int, keep: Collection[int] = ()) -> list[str]:
    """Remove old checkpoints and return their names. Not collective: one rank does it, after a save.

    The newest `keep_last` complete ones stay, and at least two: should the newest be damaged later, the run can still go on. Those
    that are not complete do not count; they are removed only when a complete one is newer. One that cannot be removed stays, with
    a warning: that is no reason to stop a run.

    Args:
        folder: Where the checkpoints are.
        keep_last: At least 1.
        keep: Steps that stay whatever their age (the best one).
    """
    complete: list[int] = []
    removed = []
    for path in step_folders(folder):
        step = _step(path)
        if step in keep:
            continue
        try:
            check_files(path, read_manifest(path), hashes=False)
            complete.append(step)
            is_old = len(complete) > max(keep_last, LEAST_KEPT)
        except CheckpointError:
            is_old = bool(complete)
        if is_old:
            try:
                remove_folder(path)
                removed.append(path.name)
            except OSError as error:
                log.warning("%s: an old checkpoint cannot be removed: %s", path, error.strerror)
    return removed


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
