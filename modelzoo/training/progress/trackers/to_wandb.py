"""Weights & Biases. Without a key it writes offline into the run's folder, and never asks for one."""

import json
import logging
import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["start"]

log = logging.getLogger(__name__)

HOST = "api.wandb.ai"
PROJECT = "modelzoo"
CONNECT_S = 30
ID_FILE = "wandb.json"


class _Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def start(folder: Path, settings: Mapping[str, Any], step: int) -> _Wandb:
    """Return a tracker of the run of that folder, which a resumed run goes on in. WANDB_PROJECT and WANDB_MODE hold.

    Args:
        folder: Of the run.
        settings: Shown beside the numbers.
        step: First step that will be told.

    Raises:
        ImportError: wandb is not installed.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if mode is None and not _has_key():
        mode = "offline"
        log.warning("output.trackers: wandb has no key, so it writes offline; later: wandb sync %s", folder / "wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.name,
        id=_run_id(folder),
        resume="allow",
        dir=str(folder),
        config=dict(settings),
        mode=mode,
        settings=wandb.Settings(silent=True, init_timeout=CONNECT_S),
    )
    return _Wandb(run)


def _run_id(folder: Path) -> str:
    """Return the id of this run's counterpart, made once."""
    file = folder / ID_FILE
    if file.is_file():
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    made = uuid.uuid4().hex[:8]
    file.write_text(json.dumps({"id": made}) + "\n", encoding="utf-8")
    return made


def _has_key() -> bool:
    """Return whether there is a key, so that nothing is asked."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
