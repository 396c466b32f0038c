"""From a name to a folder: a local folder, or a repository of the Hugging Face hub through its cache."""

import os
from pathlib import Path

from modelzoo.errors import CheckpointError
from modelzoo.hub.files import ADAPTER_FILES, COPIED_FILES, shown

__all__ = ["resolve"]

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-?????-of-?????.bin")
_TRUE = ("1", "ON", "YES", "TRUE")


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    allow_pickle: bool = False,
    with_weights: bool = True,
) -> Path:
    """Return the folder of a model: config, weights and tokenizer.

    A local folder wins over a hub id of the same name. A hub id is fetched into the Hugging Face cache (its environment variables
    hold), only the files that are needed; with `local_files_only` or HF_HUB_OFFLINE no socket is opened.

    Args:
        name_or_path: A folder, or a hub id such as "google-bert/bert-base-uncased".
        revision: Branch, tag or commit of a hub id.
        token: The hub's access token; None: the one that `hf auth login` stored.
        cache_dir: Another cache folder.
        local_files_only: Use what the cache has.
        allow_pickle: Fetch old .bin weights from a repository that has no safetensors.
        with_weights: False fetches the small files alone; whether access is granted shows all the same.

    Raises:
        CheckpointError: There is no such folder or repository, access is not granted, or it is not in the cache while offline; the
            message says what to do.
    """
    path = Path(name_or_path).expanduser()
    name = os.fspath(name_or_path)
    if name and path.is_dir():
        return path
    _refuse_paths(name, path)
    offline = local_files_only or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    small = ["config.json", "README.md", *COPIED_FILES]
    if not with_weights:
        return _snapshot(name, small, revision=revision, token=token, cache_dir=cache_dir, offline=offline)
    wanted = [*small, *_WEIGHTS, *ADAPTER_FILES]
    folder = _snapshot(name, wanted, revision=revision, token=token, cache_dir=cache_dir, offline=offline)
    if allow_pickle and not any((folder / file).exists() for file in _WEIGHTS[:2]):
        folder = _snapshot(name, [*wanted, *_PICKLES], revision=revision, token=token, cache_dir=cache_dir, offline=offline)
    return folder


def _refuse_paths(name: str, path: Path) -> None:
    """Say that a path is not there, rather than ask the hub for it."""
    if path.is_file():
        raise CheckpointError(f"{name}: expected a model folder, found a file. Give its folder, {path.parent}")
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/")
    looks_like_path = looks_like_path or (path.parent.name != "" and path.parent.is_dir())  # runs/demo-002 beside runs/demo-001
    if looks_like_path or not name.strip():
        raise CheckpointError(
            f"{shown(repr(name))}: expected a model folder, found nothing there (looked at {shown(str(path.absolute()), 300)})"
        )


def _snapshot(
    name: str,
    patterns: list[str],
    *,
    revision: str | None,
    token: str | bool | None,
    cache_dir: str | os.PathLike[str] | None,
    offline: bool,
) -> Path:
    # HTTPError is the root of the client's own network errors, whichever HTTP library its version stands on.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            token=token,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            local_files_only=offline,
            allow_patterns=patterns,
        )
    except (HTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise CheckpointError(_explained(name, revision, error, offline)) from error
    return Path(folder)


def _explained(name: str, revision: str | None, error: Exception, offline: bool) -> str:
    """Say what went wrong with a hub id and what to do."""
    from huggingface_hub import errors

    shown_name = shown(repr(name))
    if isinstance(error, errors.HFValidationError):
        return f"{shown_name}: expected a model folder or a hub id such as google-bert/bert-base-uncased, found neither"
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/{name}"
        return f"{shown_name}: access must be granted first. Accept the terms at {page}, then run `hf auth login` or pass token="
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{shown_name}: expected a branch, tag or commit of the repository, found revision={revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{shown_name}: there is no such local folder and no such repository on the hub (or it is private). Check the "
            "spelling; for a private one run `hf auth login` or pass token="
        )
    if offline:
        return (
            f"{shown_name}: there is no such local folder, it is not in the Hugging Face cache, and the hub is not asked "
            f"(local_files_only or HF_HUB_OFFLINE). Fetch it once with `hf download {shown(name)}`, or give a folder"
        )
    reason = shown(str(error).strip().split("\n")[0], 200)
    return (
        f"{shown_name}: there is no such local folder, it is not in the Hugging Face cache, and the hub cannot be reached "
        f"({reason}). Check the connection, or give a folder"
    )
