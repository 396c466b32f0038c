"""Writing on several ranks: a sharded model computes only while all ranks do, so all take the same number of steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from modelzoo.errors import ConfigError, ModelZooError, RankError
from modelzoo.generation.settings import GenerationSettings

__all__ = ["Ranks"]


class Ranks:
    """The ranks of a call; a single process is one rank that agrees with itself.

    Args:
        model: If it is sharded, the ranks are synchronised unless the settings say otherwise.
        settings: For `is_synced` and `max_new_tokens`.
    """

    def __init__(self, model: nn.Module, settings: GenerationSettings) -> None:
        is_connected = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        is_sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
        if is_sharded and settings.is_synced is False:
            raise ConfigError("is_synced=False: a sharded model needs all ranks at every step; leave it out")
        self.is_synced = is_connected and (is_sharded or bool(settings.is_synced))
        self._max_new_tokens = settings.max_new_tokens
        parameter = next(model.parameters())
        self._device = parameter.device
        if isinstance(model, FSDPModule):
            # an encoder-decoder's methods call its parts and not its forward, which is where parameters are gathered
            for name in ("prefill", "decode"):
                register_fsdp_forward_method(model, name)

    def start_together(self, problem: ModelZooError | None) -> None:
        """Begin on all ranks, or on none.

        Args:
            problem: What is wrong with this rank's call; None if nothing.

        Raises:
            ModelZooError: `problem` itself.
            RankError: Another rank has one.
            ConfigError: The ranks' `max_new_tokens` differ.
        """
        if self.is_synced:
            found: list[tuple[str | None, int]] = [(None, 0)] * dist.get_world_size()
            dist.all_gather_object(found, (None if problem is None else str(problem), self._max_new_tokens))
            if problem is None:
                self._check(found)
        if problem is not None:
            raise problem

    def _check(self, found: list[tuple[str | None, int]]) -> None:
        for rank, (text, _) in enumerate(found):
            if text is not None:
                raise RankError(f"rank {rank} cannot generate, so no rank does: {text}")
        limits = [limit for _, limit in found]
        if len(set(limits)) > 1:
            raise ConfigError(f"max_new_tokens must be the same on all ranks, found {limits}, by rank")

    def have_all_ended(self, has_ended: bool) -> bool:
        """Return whether no rank has anything left to write."""
        if not self.is_synced:
            return has_ended
        is_writing = torch.tensor([0 if has_ended else 1], device=self._device)
        dist.all_reduce(is_writing, dist.ReduceOp.MAX)
        return not bool(is_writing)
