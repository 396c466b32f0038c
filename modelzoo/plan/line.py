"""A line of a plan's table."""

from dataclasses import dataclass

__all__ = ["Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """What one thing takes in a tier when that tier is fullest."""

    name: str
    size_bytes: int
    how: str
    """Formula with its numbers."""
