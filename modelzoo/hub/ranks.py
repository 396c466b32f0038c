"""Deciding together: what one rank finds wrong, all ranks raise."""

from collections.abc import Sequence

import torch.distributed as dist

__all__ = ["agreed", "first_rank"]


def _connected() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def first_rank() -> bool:
    """Return whether this process is the only one, or rank 0."""
    return not _connected() or dist.get_rank() == 0


def agreed(problems: Sequence[str], *, together: bool) -> list[str]:
    """Return the problems of all ranks, each line once, in the order of the ranks.

    Args:
        problems: What this rank found.
        together: Whether all ranks ask; otherwise this rank's own problems are returned.
    """
    if not together or not _connected():
        return list(problems)
    found: list[list[str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, list(problems))
    return list(dict.fromkeys(line for lines in found for line in lines or []))
