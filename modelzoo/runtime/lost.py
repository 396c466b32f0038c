"""A collective that failed because another rank did not take part, told apart from an error of this rank's own."""

from collections.abc import Iterator
from contextlib import contextmanager

from modelzoo.errors import RankError

__all__ = ["CollectiveLost", "in_collective", "is_lost"]

SIGNS = ("connection", "timed out", "timeout", "gloo", "nccl", "socket", "broken pipe", "peer")
"""What torch's errors of a lost or late peer say; they have no class of their own."""


class CollectiveLost(RankError):
    """Another rank was lost or late in a collective.

    Args:
        collective: Which: "an all-gather of parameters".
        reason: What torch says.

    Attributes:
        collective: As given.
        reason: As given, its first line.
    """

    def __init__(self, collective: str, reason: str) -> None:
        self.collective = collective
        self.reason = (reason.splitlines() or [""])[0][:200]
        super().__init__(f"{collective}: another rank was lost, or did not answer in time ({self.reason})")


@contextmanager
def in_collective(name: str) -> Iterator[None]:
    """Name the collective inside the block if it fails for want of another rank.

    Args:
        name: "the sum of the gradient norm".

    Raises:
        CollectiveLost: It failed so.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, CollectiveLost) or not is_lost(error):
            raise
        raise CollectiveLost(name, str(error)) from error


def is_lost(error: BaseException) -> bool:
    """Return whether an error came from another rank's absence."""
    if isinstance(error, CollectiveLost):
        return True
    text = str(error).lower()
    return type(error).__name__ in ("RuntimeError", "DistBackendError", "DistNetworkError") and any(sign in text for sign in SIGNS)
