"""The `modelzoo` command."""

from modelzoo.cli.main import main

__all__ = ["main"]
