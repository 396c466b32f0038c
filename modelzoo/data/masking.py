"""Random masks for masked-language-model training, as a pure function of (seed, epoch, row).

Nothing is stored and no generator is shared, so a resumed run draws the same masks as one that was never stopped, on any number
of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["IGNORED", "MaskRule", "draw", "mask_tokens"]

IGNORED = -100
"""The label of a position that is not supervised."""

_ROW_BITS = 40  # rows below 2^40, epochs below 2^24


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskRule:
    """How tokens are chosen and replaced (Devlin et al., 2019, BERT, section 3.1)."""

    mask_id: int
    """Id of the mask token."""
    vocab_size: int
    """Random replacements are drawn from [0, vocab_size)."""
    seed: int
    """Seed of the masks."""
    share: float = 0.15
    """Share of the tokens that are predicted, above 0, at most 1. Of these 80 % are masked, 10 % random, 10 % kept."""


def draw(seed: int, *numbers: int, count: int) -> np.ndarray:
    """Return `count` uniform 64-bit integers that depend on the seed and one or two numbers alone.

    It uses the raw output of the Philox counter generator, which is fixed by its definition (Salmon et al., 2011), and not
    numpy's distributions, which may change with its version.
    """
    first, second = (*numbers, 0)[:2]
    key = np.array([seed & (2**64 - 1), ((first << _ROW_BITS) ^ second) & (2**64 - 1)], dtype=np.uint64)
    return np.asarray(np.random.Philox(key=key).random_raw(count), dtype=np.uint64)


def mask_tokens(
    ids: Sequence[int], maskable: Sequence[bool], rule: MaskRule, *, epoch: int, row: int
) -> tuple[list[int], list[int]]:
    """Mask one row for one epoch.

    Each maskable token is chosen with probability `rule.share`; if none is, the one that was nearest is taken, so that every row
    has a target (the one difference from transformers' collator).

    Args:
        ids: Token ids.
        maskable: True for tokens that may be chosen: no special tokens. At least one.
        rule: Shares and ids.
        epoch: Number of the pass, from 0.
        row: Number of the row, from 0.

    Returns:
        The ids with replacements, and the labels: the original id at the chosen positions, IGNORED elsewhere.
    """
    count = len(ids)
    raw = draw(rule.seed, epoch, row, count=3 * count)
    chance, action = ((raw[start : start + count] >> np.uint64(11)) * 2.0**-53 for start in (0, count))
    others = raw[2 * count :] % np.uint64(rule.vocab_size)
    chance = np.where(np.asarray(maskable, dtype=bool), chance, 2.0)
    chosen = chance < rule.share
    if not chosen.any():
        chosen[int(chance.argmin())] = True
    original = np.asarray(ids, dtype=np.int64)
    replaced = np.where(action < 0.8, rule.mask_id, np.where(action < 0.9, others.astype(np.int64), original))
    return np.where(chosen, replaced, original).tolist(), np.where(chosen, original, IGNORED).tolist()
