"""`modelzoo demo`."""

import typer

__all__ = ["demo"]


def demo(ctx: typer.Context) -> None:
    """Demo."""
