"""A folder appears complete or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelzoo.errors import SaveError
from modelzoo.hub.files import ADAPTER_FILES, CONFIG_FILE, COPIED_FILES, WEIGHT_FILES

__all__ = ["FACTS_FILE", "copy_folder", "published", "require_space", "require_target"]

FACTS_FILE = "modelzoo.json"
"""The file with modelzoo's own facts beside Hugging Face's files."""

_SLACK_BYTES = 2**20


def _is_model_file(name: str) -> bool:
    return name in (CONFIG_FILE, FACTS_FILE, *ADAPTER_FILES, *COPIED_FILES) or WEIGHT_FILES.fullmatch(name) is not None


def require_target(target: Path, *, overwrite: bool) -> None:
    """Check that a model may be written to a folder.

    Raises:
        SaveError: It is a file, or it holds something and `overwrite` is off, or it holds no model.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        kind = "a link" if target.is_symlink() else "a file"
        raise SaveError(f"{target}: expected a folder or nothing, found {kind}. Give another name")
    parent = _existing_parent(target)
    if not parent.is_dir():
        raise SaveError(f"{target}: expected a folder at {parent}, found a file. Give another name")
    if not target.exists():
        return
    found = sorted(path.name for path in target.iterdir())
    if found and not overwrite:
        raise SaveError(
            f"{target}: expected an empty folder or nothing, found {_few(found)}. Give another name, or in Python overwrite=True"
        )
    if found and CONFIG_FILE not in found:
        raise SaveError(f"{target}: expected a model to overwrite, found {_few(found)} and no {CONFIG_FILE}. Give another name")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def require_space(target: Path, size_bytes: int) -> None:
    """Check that the disk has room, before anything is written.

    Raises:
        SaveError: It has not; the message gives both sizes.
    """
    parent = _existing_parent(target)
    free = shutil.disk_usage(parent).free
    needed = size_bytes + _SLACK_BYTES
    if needed > free:
        raise SaveError(
            f"{target}: the model needs {needed / 2**20:.1f} MiB, {parent} has {free / 2**20:.1f} MiB free. Free some space"
        )


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it becomes `target` when the block ends well and goes away when it does not.

    A model that is there stays until the new one is complete; its files that are no part of a model are carried over.

    Raises:
        OSError: The disk is full or fails. `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    temporary = target.parent / f".tmp-{target.name}-{mark}"
    temporary.mkdir()
    try:
        yield temporary
        _carry_over(target, temporary)
        _sync(temporary)
        _swap(temporary, target, target.parent / f".old-{target.name}-{mark}")
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _carry_over(target: Path, temporary: Path) -> None:
    if not target.exists():
        return
    for path in target.iterdir():
        if _is_model_file(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, temporary / path.name, symlinks=True)
        else:
            shutil.copy2(path, temporary / path.name, follow_symlinks=False)


def _swap(temporary: Path, target: Path, aside: Path) -> None:
    """Put the new folder in the old one's place; the old one is removed only after that."""
    if not target.exists() or not any(target.iterdir()):
        temporary.rename(target)
        return
    target.rename(aside)
    try:
        temporary.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a model's folder into a new one, all of them or none; folders in it and hidden files are left out.

    Args:
        source: In Hugging Face's form.
        target: Absent, or an empty folder.

    Raises:
        SaveError: The target is in use, or the disk is full or fails.
    """
    require_target(target, overwrite=False)
    files = [file for file in source.iterdir() if file.is_file() and not file.name.startswith(".")]
    require_space(target, sum(file.stat().st_size for file in files))
    try:
        with published(target) as temporary:
            for file in files:
                shutil.copy2(file, temporary / file.name)
    except OSError as error:
        raise SaveError(f"{target}: could not be written ({error.strerror or error}); nothing was left there") from error
