"""Losses of the tasks. Every mean is over the supervised targets, and a batch without any gives 0, not NaN."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["IGNORED", "cross_entropy", "span_loss"]

IGNORED = -100  # the one label that means "no target here", as in torch and Hugging Face


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the labels that are not `IGNORED`.

    Args:
        logits: (..., C) float; the loss is computed in float32.
        labels: (...) int64 in [0, C), or `IGNORED`.

    Returns:
        () float32.
    """
    flat = labels.flatten()
    total = F.cross_entropy(logits.flatten(0, -2).float(), flat, ignore_index=IGNORED, reduction="sum")
    return total / (flat != IGNORED).sum().clamp(min=1)


def span_loss(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the mean of the start's and the end's cross-entropy (SQuAD).

    Args:
        start_logits: (B, T) float.
        end_logits: (B, T) float.
        starts: (B,) int64 column of the answer's first token, or `IGNORED`.
        ends: (B,) int64 column of its last token, or `IGNORED`.

    Returns:
        () float32.
    """
    return (cross_entropy(start_logits, starts) + cross_entropy(end_logits, ends)) / 2
