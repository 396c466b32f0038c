"""trackio: a local database, shown by `trackio show`; nothing leaves the machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["start"]

PROJECT = "modelzoo"


class _Trackio:
    def __init__(self, module: Any) -> None:
        self._module = module

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        self._module.finish()


def start(folder: Path, settings: Mapping[str, Any], step: int) -> _Trackio:
    """Return a tracker of the run with that folder's name, which a resumed run goes on in. TRACKIO_PROJECT holds.

    Args:
        folder: Of the run.
        settings: Shown beside the numbers.
        step: First step that will be told.

    Raises:
        ImportError: trackio is not installed.
    """
    import trackio

    trackio.init(project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=folder.name, resume="allow", config=dict(settings))
    return _Trackio(trackio)
