"""Publishing a folder so that it is either all there or not there at all, and removing old ones in the same way.

Everything is written into `.tmp-...` beside the target, made durable, and renamed; a folder is renamed away before it is deleted.
What a killed process leaves behind is a `.tmp-...` folder, which `sweep` removes at the next start.
"""

import os
import shutil
import uuid
from pathlib import Path

from modelzoo.errors import SaveError
from modelzoo.quantities import readable_size
from modelzoo.runtime.checkpoints.durable import DurableFile, WrittenFile

__all__ = [
    "check_space",
    "make_temporary",
    "publish",
    "readable_size",
    "remove_folder",
    "set_damaged_aside",
    "sweep",
    "sync_folder",
    "write_text",
]

TEMPORARY = ".tmp-"
DAMAGED = "damaged-"

SPARE_BYTES = 2**20


def make_temporary(target: Path) -> Path:
    """Make a folder beside `target`, to be filled and then published under that name, and return it.

    Args:
        target: A folder that does not exist.

    Raises:
        SaveError: The target exists: a published folder is never written into.
    """
    if target.exists():
        raise SaveError(f"{target}: exists already; expected a new folder, since a published one is never changed")
    temporary = target.parent / f"{TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    return temporary


def publish(temporary: Path, target: Path) -> None:
    """Let a filled folder, whose files are durable, appear under the name `target`, all at once and durably.

    Raises:
        OSError: It cannot be renamed.
    """
    sync_folder(temporary)
    os.rename(temporary, target)
    sync_folder(target.parent)


def write_text(path: Path, text: str) -> WrittenFile:
    """Write a new text file durably and return its size and hash."""
    with DurableFile(path) as file:
        file.write(text.encode())
    return file.facts


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a published folder in such an order that no half of it is ever offered under its name.

    Raises:
        OSError: It cannot be renamed; it is still whole.
    """
    away = folder.parent / f"{TEMPORARY}delete-{folder.name}-{uuid.uuid4().hex[:8]}"
    os.rename(folder, away)
    shutil.rmtree(away, ignore_errors=True)


def set_damaged_aside(folder: Path) -> Path:
    """Rename a damaged folder, so that its name can be used again, and return where it is now. Nothing removes it but a person."""
    away = folder.parent / f"{DAMAGED}{folder.name}-{uuid.uuid4().hex[:8]}"
    os.rename(folder, away)
    return away


def sweep(folder: Path) -> list[str]:
    """Remove what killed processes left in `folder`, and return the names. Only while no other process saves there."""
    if not folder.is_dir():
        return []
    orphans = sorted(path for path in folder.iterdir() if path.name.startswith(TEMPORARY))
    for orphan in orphans:
        shutil.rmtree(orphan, ignore_errors=True)
    return [orphan.name for orphan in orphans]


def check_space(folder: Path, needed_bytes: int, doing: str) -> None:
    """Refuse a save for which there is no room, before anything is written.

    Args:
        folder: Where it goes; it exists.
        needed_bytes: Size of all its files; 1 MiB is added for the small ones.
        doing: What the message calls it: `save of step 12`.

    Raises:
        SaveError: Too little space is free; the message says both sizes.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise SaveError(
            f"{doing} needs {readable_size(needed_bytes + SPARE_BYTES)}, {readable_size(free)} free at {folder}; "
            "free some space and resume: what was saved before is intact"
        )
