"""Extractive question answering: where an answer starts and where it ends, among the tokens of a text."""

import torch
from torch import Tensor

from modelzoo.layers import Layout
from modelzoo.models.losses import span_loss
from modelzoo.models.model import ModelOutput
from modelzoo.models.targets import span_targets

__all__ = ["answer_output"]


def answer_output(scores: Tensor, layout: Layout, mask: Tensor | None, starts: Tensor | None, ends: Tensor | None) -> ModelOutput:
    """Return the scores of both ends, the lowest float at padding, which can be no answer, and their loss.

    Args:
        scores: (B, T, 2) float of the first and of the last token.
        layout: Where the real tokens of the text are.
        mask: (B, T), non-zero where there is a token; None when all are.
        starts: (B,) int64 column of the answer's first token, or None for no loss.
        ends: (B,) int64 column of its last token, or None for no loss.

    Raises:
        DataError: A column is outside the text, or padding.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask.bool().unsqueeze(-1), torch.finfo(scores.dtype).min)
    start_logits, end_logits = scores.unbind(-1)
    if starts is None or ends is None:
        return ModelOutput(start_logits=start_logits, end_logits=end_logits)
    starts, ends = span_targets("start_positions", starts, layout), span_targets("end_positions", ends, layout)
    return ModelOutput(loss=span_loss(start_logits, end_logits, starts, ends), start_logits=start_logits, end_logits=end_logits)
