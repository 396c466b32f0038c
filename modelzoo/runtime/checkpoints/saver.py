"""The checkpoints of a run as it goes: saved at once or in the background, and old ones let go."""

import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from modelzoo.runtime.checkpoints.checkpoint import Identity, prepare_save
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.checkpoints.retention import retain
from modelzoo.runtime.checkpoints.saving import Save
from modelzoo.runtime.memory import free_bytes
from modelzoo.runtime.process import World
from modelzoo.sharded import is_away

__all__ = ["CheckpointSaver"]

log = logging.getLogger(__name__)

COPY_SHARE = 0.5
"""Share of the free memory that the copy for a background save may take; the next step needs the rest."""


class CheckpointSaver:
    """Saves the checkpoints of one run into one folder, and keeps the newest and the named ones.

    In the background, the values are copied when `save` is called and written by a thread while training goes on. The checkpoint
    appears when all ranks have written, at a step boundary: `counts` says how far this rank is, and `settle` waits and publishes.

    Args:
        folder: Where the checkpoints of the run are; made if missing.
        world: The processes.
        identity: Of the config and the data.
        keep_last: How many of the newest stay, at least two.
        background: Whether to write while training goes on.
    """

    def __init__(self, folder: Path, world: World, identity: Identity, *, keep_last: int, background: bool = False) -> None:
        self._folder, self._world, self._identity = folder, world, identity
        self._keep_last, self._background = keep_last, background
        self._pending: tuple[Save, threading.Thread, frozenset[int]] | None = None

    def save(
        self, step: int, *, model: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any], keep: Collection[int] = ()
    ) -> None:
        """Save the state as it is now; a save that is still being written is published first. Collective.

        Args:
            step: Optimizer steps taken.
            model: Plain or sharded.
            optimizer: Over its parameters.
            state: JSON values; rank 0's are saved.
            keep: Steps whose checkpoints stay, beside the newest.

        Raises:
            SaveError: As `save_checkpoint`; also for the save before, if that was in the background and failed.
            RankError: As `save_checkpoint`.
        """
        self.settle()
        save = prepare_save(
            self._folder, step, model=model, optimizer=optimizer, world=self._world, state=state, identity=self._identity
        )
        in_background = self._background and _can_copy(save)
        if in_background:
            save.own = {kind: {name: part.to("cpu", copy=True) for name, part in some.items()} for kind, some in save.own.items()}
        thread = threading.Thread(target=save.write, args=(self._world.rank,), name=f"save of step {step}", daemon=True)
        self._pending = (save, thread, frozenset(keep))
        if in_background:
            thread.start()
        else:
            save.write(self._world.rank)
        if not self._background:
            self.settle()

    def counts(self) -> tuple[bool, bool]:
        """Return whether this rank has written the pending save, and whether it failed to. Not collective.

        When all ranks have, or any has failed, all call `settle`.
        """
        if self._pending is None or self._pending[1].is_alive():
            return False, False
        return True, self._pending[0].error is not None

    def settle(self) -> None:
        """Wait for the pending save, publish it, and let old checkpoints go; does nothing without one. Collective.

        Raises:
            SaveError: A rank could not write. What was published before is intact.
        """
        if self._pending is None:
            return
        (save, thread, keep), self._pending = self._pending, None
        _join(thread)
        save.publish(self._world)
        if self._world.is_main:
            retain(self._folder, self._keep_last, keep=keep)

    def abandon(self) -> None:
        """Give the pending save up, after an error of one rank: its temporary folder goes. Not collective."""
        if self._pending is None:
            return
        (save, thread, _), self._pending = self._pending, None
        _join(thread)
        if self._world.is_main:
            save.withdraw()


def _join(thread: threading.Thread) -> None:
    if thread.ident is not None:
        thread.join()


def _can_copy(save: Save) -> bool:
    """Return whether there is memory for a copy of what this rank writes; say so if not."""
    if any(is_away(part) for some in save.own.values() for part in some.values()):
        log.warning(
            "%s: its values are on disk; a background save would bring them all into memory, so this one waits", save.target.name
        )
        return False
    needed = sum(part.nbytes for some in save.own.values() for part in some.values())
    free = free_bytes(torch.device("cpu"))
    if needed <= COPY_SHARE * free:
        return True
    log.warning(
        "%s: the copy for a background save takes %s of %s free; this one is written before training goes on",
        save.target.name,
        readable_size(needed),
        readable_size(free),
    )
    return False
