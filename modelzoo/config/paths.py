"""Settings that name files: made absolute against where they were written, and looked for before anything starts."""

from pathlib import Path

from modelzoo.config.yaml_file import KeyPath
from modelzoo.errors import closest

__all__ = ["absolute", "missing_file"]

_FILES = {("data", "train"), ("data", "validation"), ("data", "test")}
_FILES_OR_NAMES = {("model", "name"), ("data", "name")}


def absolute(path: KeyPath, value: object, base: Path, *, is_typed: bool) -> object:
    """Return the value of a setting, made absolute if it names a file or a folder.

    Args:
        path: Which setting it is.
        value: What was written.
        base: The folder against which it was written: the recipe's own, or the current one.
        is_typed: Whether it was typed as a command, where an existing folder needs no leading ./ to be one.
    """
    if not isinstance(value, str) or not value or "://" in value:
        return value
    is_path = value.startswith(("./", "../", "/", "~")) or value in {".", ".."} or Path(value).is_absolute()
    if path in _FILES or (path in _FILES_OR_NAMES and (is_path or (is_typed and (base / value).is_dir()))):
        return str((base / Path(value).expanduser()).resolve())
    return value


def missing_file(path: KeyPath, value: object) -> str | None:
    """Return what is wrong with a setting that names a file or folder which does not exist, or a folder that cannot be made."""
    if path == ("memory", "disk", "path") and isinstance(value, str):
        wanted = Path(value).expanduser().absolute()
        found = next(each for each in (wanted, *wanted.parents) if each.exists())
        return None if found.is_dir() else f"{value}: expected a folder, found the file {found}"
    if path not in _FILES | _FILES_OR_NAMES or not isinstance(value, str) or not Path(value).is_absolute():
        return None
    place = Path(value)
    if place.exists():
        return None
    kind = "file" if path in _FILES else "folder"
    if not place.parent.is_dir():
        return f"{value}: there is no such {kind} (nor the folder {place.parent})"
    near = closest(place.name, (entry.name for entry in place.parent.iterdir()))
    hint = f"; did you mean {place.parent / near[0]}?" if near else ""
    return f"{value}: there is no such {kind}{hint}"
