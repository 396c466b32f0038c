"""`modelzoo eval` and `modelzoo predict`: a trained model on rows of your own."""

import typer

__all__ = ["evaluate", "predict"]


def evaluate(ctx: typer.Context) -> None:
    """Evaluate."""


def predict(ctx: typer.Context) -> None:
    """Predict."""
