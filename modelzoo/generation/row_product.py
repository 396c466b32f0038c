"""One row times a weight, on all threads: the product that bounds writing to a single sequence.

MKL multiplies one row on one thread, whatever the number of threads, and so reads memory at a third of its speed. Its batched
product takes one matrix a thread: a weight cut into as many chunks of outputs is read at the speed of all of them. A weight with
many more outputs than inputs is read another 1.2 to 1.6 times as fast when its inputs lie outside, which needs a copy; the others
are multiplied where they are, unless several are joined.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RowProduct", "is_available"]

_WIDE = 2  # outputs an input from which the inputs lie outside
_SMALLEST_CHUNK = 1 << 14  # elements: a thread with fewer waits longer for the others than it reads
_TILE = 512  # outputs that are transposed at once, so that both sides stay in the cache: 7 GB/s instead of 2


def is_available() -> bool:
    """Return whether this torch multiplies on the CPU with MKL."""
    return bool(torch.backends.mkl.is_available())


class RowProduct:
    """x -> scale * (x Wᵀ) + b for a single row x, by one or several maps of the same input; there is no backward.

    Args:
        weights: Each (out, in) float32 on the CPU; the outputs follow each other.
        biases: Each (out,) float32, or None for no biases.
        scale: Factor on x Wᵀ.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None, scale: float = 1.0) -> None:
        self._out_features, in_features = sum(len(weight) for weight in weights), weights[0].shape[1]
        chunks = min(torch.get_num_threads(), max(1, self._out_features * in_features // _SMALLEST_CHUNK))
        is_whole = self._out_features < _WIDE * in_features and not self._out_features % chunks
        if is_whole:
            whole = weights[0].detach().contiguous() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])
            self._chunks = whole.unflatten(0, (chunks, -1)).transpose(1, 2)
        else:
            self._chunks = _with_inputs_outside(weights, chunks)
        is_view = self._chunks.data_ptr() == weights[0].data_ptr()
        self._count, self._scale = len(self._chunks), scale
        self._num_spare = self._count * self._chunks.shape[2] - self._out_features
        self._biases: Tensor | None = None
        if biases is not None:
            room = torch.zeros(self._count * self._chunks.shape[2])
            torch.cat([bias.detach() for bias in biases], out=room[: self._out_features])
            self._biases = room.unflatten(0, (self._count, 1, -1))
        self.size_bytes = 0 if is_view else self._chunks.numel() * self._chunks.element_size()

    def __call__(self, hidden: Tensor) -> Tensor:
        """Multiply.

        Args:
            hidden: (..., in) float32 of one row.

        Returns:
            (..., out) float32.
        """
        if hidden.dim() > 3:
            return self(hidden.reshape(1, 1, -1)).view(*hidden.shape[:-1], self._out_features)
        row = hidden.expand(self._count, 1, -1)
        if self._biases is None:
            mapped = torch.bmm(row, self._chunks)
            mapped = mapped if self._scale == 1.0 else mapped * self._scale
        else:
            mapped = torch.baddbmm(self._biases, row, self._chunks, alpha=self._scale)
        if self._num_spare:
            mapped = mapped.view(-1)[: self._out_features]
        return mapped.view(1, 1, -1) if hidden.dim() == 3 else mapped.view(*hidden.shape[:-1], -1)


def _with_inputs_outside(weights: Sequence[Tensor], chunks: int) -> Tensor:
    """Return a (C, in, width) copy of all outputs, in as wide chunks as there can be; the last is filled up with zeros."""
    num_outputs, in_features = sum(len(weight) for weight in weights), weights[0].shape[1]
    width = -(-num_outputs // chunks)
    copy = (torch.zeros if num_outputs % chunks else torch.empty)(chunks, in_features, width)
    place = 0
    for weight in weights:
        for tile in weight.detach().split(_TILE):
            while len(tile):
                chunk, column = divmod(place, width)
                part = tile[: width - column]
                copy[chunk, :, column : column + len(part)] = part.T
                tile, place = tile[len(part) :], place + len(part)
    return copy
