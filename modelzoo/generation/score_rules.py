"""What happens to a model's scores before a token is chosen; each rule is transformers' own, to the last bit.

The reference is `transformers.generation.logits_process`, and the order of the rules is that of its `_get_logits_processor`.
"""

import torch
from torch import Tensor

from modelzoo.generation.settings import GenerationSettings

__all__ = ["ScoreRules", "keep_min_p", "keep_top_k", "keep_top_p", "penalise_repetition"]

_REMOVED = float("-inf")


def penalise_repetition(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Lower the scores of tokens that stand in the history (Keskar et al., 2019, section 4.1).

    Args:
        scores: (B, V) float.
        history: (B, T) int64; V itself stands for padding.
        penalty: Above 1 to lower, below 1 to raise.

    Returns:
        (B, V) float.
    """
    seen = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    seen = seen.scatter_(1, history, True)[:, :-1]
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def keep_top_k(scores: Tensor, count: int) -> Tensor:
    """Remove all but the `count` best scores of each row, and those equal to the last of them.

    Args:
        scores: (B, V) float.
        count: At least 1.

    Returns:
        (B, V) float, -inf where removed.
    """
    last = torch.topk(scores, min(count, scores.shape[-1]))[0][..., -1, None]
    return scores.masked_fill(scores < last, _REMOVED)


def keep_top_p(scores: Tensor, share: float) -> Tensor:
    """Keep the fewest best tokens whose probabilities reach `share` (Holtzman et al., 2020).

    Args:
        scores: (B, V) float.
        share: Above 0, at most 1.

    Returns:
        (B, V) float, -inf where removed; the best token always stays.
    """
    ascending, order = torch.sort(scores, descending=False)
    is_removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - share
    is_removed[..., -1:] = False
    return scores.masked_fill(is_removed.scatter(1, order, is_removed), _REMOVED)


def keep_min_p(scores: Tensor, share: float) -> Tensor:
    """Keep tokens with at least `share` of the best one's probability (Nguyen et al., 2024).

    Args:
        scores: (B, V) float.
        share: 0 to 1.

    Returns:
        (B, V) float, -inf where removed; the best token always stays.
    """
    probabilities = torch.softmax(scores, dim=-1)
    is_removed = probabilities < share * probabilities.amax(dim=-1, keepdim=True)
    is_removed.scatter_(-1, probabilities.argmax(dim=-1, keepdim=True), False)
    return scores.masked_fill(is_removed, _REMOVED)


class ScoreRules:
    """The rules of a call, in transformers' order.

    Args:
        settings: Which rules, with which numbers.
        end: Ids that end a text.
        device: Of the scores.
    """

    def __init__(self, settings: GenerationSettings, end: tuple[int, ...], device: torch.device) -> None:
        self._settings = settings
        self._end = torch.tensor(end, dtype=torch.int64, device=device)

    @property
    def needs_history(self) -> bool:
        """Whether the rules look at the tokens so far."""
        return self._settings.repetition_penalty != 1.0

    def __call__(self, scores: Tensor, history: Tensor, num_written: int) -> Tensor:
        """Apply them.

        Args:
            scores: (B, V) float32.
            history: (B, T) int64, as in `penalise_repetition`; read only if `needs_history`.
            num_written: Tokens written so far.

        Returns:
            (B, V) float32, -inf where a token must not be chosen.
        """
        settings = self._settings
        if self.needs_history:
            scores = penalise_repetition(scores, history, settings.repetition_penalty)
        if num_written < settings.min_new_tokens and len(self._end):
            scores = scores.index_fill(1, self._end, _REMOVED)
        return self._for_sampling(scores) if settings.do_sample else scores

    def _for_sampling(self, scores: Tensor) -> Tensor:
        settings = self._settings
        if settings.temperature != 1.0:
            scores = scores / settings.temperature
        if settings.top_k is not None:
            scores = keep_top_k(scores, settings.top_k)
        if settings.top_p < 1.0:
            scores = keep_top_p(scores, settings.top_p)
        return keep_min_p(scores, settings.min_p) if settings.min_p > 0 else scores
