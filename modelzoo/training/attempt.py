"""An action and its error as values, so that ranks can tell each other before one of them raises."""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["attempt"]

T = TypeVar("T")


def attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what an action returns, or its error for `raise_together`."""
    try:
        return action(), None
    except Exception as error:
        return None, error
