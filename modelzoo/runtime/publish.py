"""Publishing a folder so that it is either all there or not there at all, and removing old ones in the same way.

Everything is written into `.tmp-...` beside the target, made durable, and renamed; a folder is renamed away before it is deleted.
What a killed process leaves behind is a `.tmp-...` folder, which `sweep` removes at the next start.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelzoo.errors import SaveError
from modelzoo.runtime.tensors import WrittenFile

__all__ = ["check_space", "publishing", "readable_size", "remove_folder", "rename_away", "sweep", "write_text"]

TEMPORARY = ".tmp-"

SPARE_BYTES = 2**20


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """Give a temporary folder to fill, and publish it under the name `target` when the block ends without an error.

    On an error the temporary folder is removed and `target` does not appear.

    Args:
        target: A folder that does not exist.

    Raises:
        SaveError: The target exists: a published folder is never written into.
    """
    if target.exists():
        raise SaveError(f"{target}: exists already; expected a new folder, since a published one is never changed")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        os.rename(temporary, target)
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(target.parent)


def write_text(path: Path, text: str) -> WrittenFile:
    """Write a new text file durably and return its size and hash."""
    content = text.encode()
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(len(content), hashlib.sha256(content).hexdigest())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a published folder in such an order that no half of it is ever offered under its name."""
    shutil.rmtree(rename_away(folder, "delete"), ignore_errors=True)


def rename_away(folder: Path, reason: str) -> Path:
    """Rename a folder to a temporary name, which `sweep` removes at the next start, and return it."""
    away = folder.parent / f"{TEMPORARY}{reason}-{folder.name}-{uuid.uuid4().hex[:8]}"
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


def readable_size(size_bytes: float) -> str:
    """Return a size in the binary unit that fits: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")
