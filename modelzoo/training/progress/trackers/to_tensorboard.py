"""TensorBoard: event files in the run's folder. `tensorboard --logdir runs` shows all runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["start"]


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what an earlier part of the run wrote after the step that it goes on from is hidden
        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def start(folder: Path, settings: Mapping[str, Any], step: int) -> _TensorBoard:
    """Return a tracker that writes below the run's folder.

    Args:
        folder: Of the run.
        settings: Not used: resolved.yaml stands beside the events.
        step: First step that will be told.

    Raises:
        ImportError: tensorboard is not installed.
    """
    return _TensorBoard(folder, step)
