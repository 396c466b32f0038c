"""Sending a folder to the hub: apart from training, and again without sending twice what is there."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelzoo.errors import CheckpointError, ConfigError, SaveError

__all__ = ["Pushed", "push_folder"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TRUE = ("1", "ON", "YES", "TRUE")
_LARGE_BYTES = 10 * 2**30
"""From here on files go up one by one, so that an interruption costs one file at most."""
_IGNORED = [".*", ".cache/**", "*.tmp"]


@dataclass(frozen=True, slots=True)
class Pushed:
    """Where a folder is now."""

    url: str
    is_private: bool


def push_folder(folder: Path, name: str, *, private: bool = True, message: str = "Upload by modelzoo", api: Any = None) -> Pushed:
    """Upload a model folder; the repository is made where there is none. May be repeated: what is there is not sent again.

    Args:
        folder: With config.json.
        name: user/name on the hub.
        private: Of a new repository; an existing one keeps what it is.
        message: Of the commit.
        api: Stands in for huggingface_hub's `HfApi`.

    Raises:
        ConfigError: The name is none, the hub is not to be asked, or nobody is logged in.
        CheckpointError: The folder is no model's.
        SaveError: The hub refused or the connection failed; the folder is as it was, and the same call goes on.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, LocalTokenNotFoundError

    _check(folder, name)
    api = HfApi() if api is None else api
    try:
        user = api.whoami()["name"]
    except (LocalTokenNotFoundError, HTTPError, OSError) as error:
        raise ConfigError(
            f"push to {name}: nobody is logged in ({_first_line(error)}); run `hf auth login`, then push again"
        ) from error
    files = [path for path in folder.iterdir() if path.is_file()]
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if sum(path.stat().st_size for path in files) >= _LARGE_BYTES:
            api.upload_large_folder(repo_id=name, folder_path=folder, repo_type="model", ignore_patterns=_IGNORED)
        else:
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, ignore_patterns=_IGNORED)
        info = api.repo_info(name)
    except (HTTPError, OSError, ValueError) as error:
        hint = "" if name.startswith(f"{user}/") else f" (logged in as {user})"
        raise SaveError(f"push to {name}{hint}: {_first_line(error)}; {folder} is as it was, push again to go on") from error
    return Pushed(f"https://huggingface.co/{name}", bool(info.private))


def _check(folder: Path, name: str) -> None:
    if not _NAME.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"{name!r}: expected USER/NAME, such as me/boolq-bert")
    if not ((folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()):
        raise CheckpointError(f"{folder}: expected the folder of a model, with config.json; found none")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise ConfigError(f"push to {name}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
