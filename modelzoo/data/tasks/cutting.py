"""How a task cuts plain texts into samples, as arithmetic on their lengths: what a token store needs to know of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from modelzoo.data.tasks.draws import Draws
from modelzoo.data.tokenizer import Tokenizer

__all__ = ["Cut", "StoredTokens", "special_around"]


class StoredTokens(Protocol):
    """Documents on disk."""

    def slice(self, document: int, start: int, end: int) -> np.ndarray:
        """Return the ids [start, end) of a document."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Pieces of documents. A document's ids are `before`, those of its text, and `after`."""

    form: str
    """Which form the samples have (`samples.FORMS`)."""
    length: int
    """Tokens of the longest piece of a document, at least 1."""
    overlap: int = 0
    """Tokens that a piece shares with the one before it; a piece with no more than these is none."""
    before: tuple[int, ...] = ()
    """Ids at the beginning of each document."""
    after: tuple[int, ...] = ()
    """Ids at the end of each document."""
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Ids before and after each piece."""
    least: int = 1
    """Tokens of the shortest piece that is a sample."""
    draws: Draws | None = None
    """Makes the samples anew in each epoch."""
    num_targets: Callable[[Sequence[int]], int]
    """Returns the targets of samples by their tokens; for what is drawn by chance, the expected number."""

    def pieces(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all samples: document, first token of the piece in it, and tokens with those around it, (samples,) each.

        Args:
            lengths: (documents,) tokens of each text.
        """
        whole = lengths.astype(np.int64) + len(self.before) + len(self.after)
        step = self.length - self.overlap
        each = np.maximum(-(-(whole - self.overlap) // step), 1)
        documents = np.repeat(np.arange(len(lengths)), each)
        number = np.arange(len(documents)) - np.repeat(np.cumsum(each) - each, each)
        first = number * step
        counts = np.minimum(whole[documents] - first, self.length)
        kept = counts >= self.least
        return documents[kept], first[kept], counts[kept] + sum(map(len, self.around))

    def read(self, tokens: StoredTokens, document: int, first: int, count: int) -> list[int]:
        """Return the ids of a sample.

        Args:
            tokens: The documents.
            document: Which.
            first: First token of the piece.
            count: Tokens, those around it included, as `pieces` says.
        """
        end = first + count - sum(map(len, self.around))
        skipped = len(self.before)
        text: list[int] = tokens.slice(document, max(first - skipped, 0), max(end - skipped, 0)).tolist()
        # a slice ends with its document; what is missing then are the ids after it
        ids = [*self.before[first:end], *text]
        return [*self.around[0], *ids, *self.after[: end - first - len(ids)], *self.around[1]]


def special_around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special ids that a tokenizer puts before and after a text."""
    whole, alone = tokenizer.encode(["a"])[0].input_ids, tokenizer.encode_parts(["a"])[0].input_ids
    start = next(place for place in range(len(whole) + 1) if whole[place : place + len(alone)] == alone)
    return tuple(whole[:start]), tuple(whole[start + len(alone) :])
