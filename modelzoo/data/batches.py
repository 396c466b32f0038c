"""The order of the samples, and how a step's samples are shared out.

Everything here is a pure function of its arguments: no generator is shared and torch's and numpy's global ones are never touched,
so one integer, the number of samples consumed, is the whole state of a stream.
"""

import math
from collections.abc import Sequence

import numpy as np

from modelzoo.data.masking import draw
from modelzoo.errors import DataError

__all__ = ["BatchStream", "micro_batches", "split_among"]

_ORDER_STREAM = 1 << 62  # keeps the draws of the order apart from those of the masks


class BatchStream:
    """Global batches of sample numbers, endless over epochs; a batch never crosses an epoch.

    The order depends on (seed, epoch) alone, not on the number of processes, nor on how often the run was stopped. Seeking costs
    one permutation.

    Args:
        lengths: Tokens of each sample.
        batch_size: Samples of a batch; the last one of an epoch may be smaller.
        batch_tokens: In place of batch_size: samples are taken in order while their tokens fit.
        seed: Seed of the order.
        shuffle: False keeps the order of the data in each epoch.
        drop_last: True leaves out the samples that do not fill a batch; only with batch_size.
        position: Samples consumed since the start of the run, as `position` gave it.

    Raises:
        DataError: If there are no samples, both or neither sizes are given, or a sample does not fit into batch_tokens.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        position: int = 0,
    ) -> None:
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.shuffle = shuffle
        count = len(self._lengths)
        self.samples_per_epoch = count // batch_size * batch_size if drop_last and batch_size else count
        self._check(drop_last)
        self.position = position
        self.epoch = position // self.samples_per_epoch
        """Epoch of the batch that was given out last, from 0; before that, of the next one."""
        self._order_epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        self._tokens_before = np.empty(0, dtype=np.int64)

    @property
    def position(self) -> int:
        """Samples consumed since the start: the whole state of the stream."""
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        if value < 0:
            raise DataError(f"expected a position of at least 0, found {value}")
        self._position = value

    @property
    def batches_per_epoch(self) -> int:
        """Batches of the first epoch; with batch_tokens another epoch may have a few more or less."""
        return self.batches_in(0)

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> list[int]:
        self.epoch, start = divmod(self._position, self.samples_per_epoch)
        end = self._batch_end(self.epoch, start)
        self._position += end - start
        batch: list[int] = self._order[start:end].tolist()
        return batch

    def peek(self, position: int, count: int) -> list[int]:
        """Return the first samples of the batch that begins at a position; the stream stays where it is.

        Args:
            position: Samples consumed before it.
            count: Most samples.
        """
        place = self._position, self.epoch
        self._position = position
        batch = next(self)
        self._position, self.epoch = place
        return batch[:count]

    def order(self, epoch: int) -> np.ndarray:
        """Return the samples of an epoch in order: (samples,) int64."""
        count = len(self._lengths)
        if not self.shuffle:
            return np.arange(count)
        return np.argsort(draw(self.seed, _ORDER_STREAM, epoch, count=count), kind="stable")

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        if self.batch_size is not None:
            return math.ceil(self.samples_per_epoch / self.batch_size)
        count = start = 0
        while start < self.samples_per_epoch:
            start = self._batch_end(epoch, start)
            count += 1
        return count

    def steps_for(self, epochs: float) -> int:
        """Return the batches of so many epochs; a fraction is rounded up to a whole batch.

        Raises:
            DataError: If epochs is not above 0.
        """
        if not 0 < epochs < math.inf:
            raise DataError(f"expected epochs above 0, found {epochs}")
        whole = int(epochs)
        if self.batch_size is not None:
            steps = whole * self.batches_per_epoch
        else:
            steps = sum(self.batches_in(epoch) for epoch in range(whole))
        part = epochs - whole
        return steps + (math.ceil(part * self.batches_in(whole) - 1e-9) if part else 0)

    def _batch_end(self, epoch: int, start: int) -> int:
        """Return where the batch that begins at `start` of the epoch ends."""
        if self._order_epoch != epoch:
            self._order = self.order(epoch)
            self._tokens_before = np.concatenate([[0], np.cumsum(self._lengths[self._order])])
            self._order_epoch = epoch
        if self.batch_size is not None:
            return min(start + self.batch_size, self.samples_per_epoch)
        limit = self._tokens_before[start] + self.batch_tokens
        return int(np.searchsorted(self._tokens_before, limit, side="right")) - 1

    def _check(self, drop_last: bool) -> None:
        if (self.batch_size is None) == (self.batch_tokens is None):
            raise DataError(
                f"expected batch_size or batch_tokens, found batch_size={self.batch_size} and batch_tokens={self.batch_tokens}"
            )
        size = self.batch_size if self.batch_size is not None else self.batch_tokens
        if size is not None and size < 1:
            raise DataError(f"expected a batch of at least 1, found {size}")
        if drop_last and self.batch_size is None:
            raise DataError(f"drop_last needs batch_size, found batch_tokens={self.batch_tokens}")
        count = len(self._lengths)
        if self.samples_per_epoch == 0:
            raise DataError(f"expected at least one batch, found {count} samples for batch_size={self.batch_size}")
        if self.batch_tokens is not None and int(self._lengths.max()) > self.batch_tokens:
            sample = int(self._lengths.argmax())
            raise DataError(
                f"sample {sample} has {self._lengths[sample]} tokens, limit batch_tokens={self.batch_tokens}; raise it or lower "
                f"max_length"
            )


def split_among(indices: Sequence[int], lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Share a batch out to processes so that each has about as many tokens.

    Longest first, each sample goes to the part with the fewest tokens. Every sample is in exactly one part; with fewer samples
    than parts, some parts are empty.

    Args:
        indices: Samples of the batch.
        lengths: Tokens of every sample of the data set.
        parts: Number of processes, at least 1.

    Returns:
        One list a process, in the order of the batch.

    Raises:
        DataError: If parts is below 1.
    """
    if parts < 1:
        raise DataError(f"expected at least 1 part, found {parts}")
    loads = [0] * parts
    chosen: list[list[int]] = [[] for _ in range(parts)]
    for place in sorted(range(len(indices)), key=lambda place: (-lengths[indices[place]], place)):
        part = min(range(parts), key=lambda part: (loads[part], len(chosen[part]), part))
        loads[part] += lengths[indices[place]]
        chosen[part].append(place)
    return [[indices[place] for place in sorted(places)] for places in chosen]


def micro_batches(
    indices: Sequence[int], lengths: Sequence[int], max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Cut a process's share of a step into pieces for one forward each, samples of like length together.

    The longest come first, so that a step that does not fit into memory fails at once.

    Args:
        indices: Samples of the share.
        lengths: Tokens of every sample of the data set.
        max_rows: Most samples of a piece, at least 1; None for no limit.
        max_tokens: Most tokens of a piece, padding included, at least 1; a single longer sample stands alone. None: no limit.

    Returns:
        The pieces, none empty; no piece at all for an empty share.

    Raises:
        DataError: If a limit is below 1.
    """
    for name, limit in (("max_rows", max_rows), ("max_tokens", max_tokens)):
        if limit is not None and limit < 1:
            raise DataError(f"expected {name} of at least 1, found {limit}")
    pieces: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -lengths[index]):
        piece = pieces[-1] if pieces else []
        is_full = max_rows is not None and len(piece) >= max_rows
        if piece and max_tokens is not None:
            is_full = is_full or (len(piece) + 1) * lengths[piece[0]] > max_tokens
        if not piece or is_full:
            pieces.append([index])
        else:
            piece.append(index)
    return pieces
