"""One row times a weight, on all threads: the product that bounds writing to a single sequence.

MKL multiplies one row on one thread, whatever the number of threads, and so reads memory at a third of its speed. Its batched
product takes one matrix a thread: a weight cut into as many chunks of outputs is read at the speed of all of them. A weight with
many more outputs than inputs is read another 1.2 to 1.6 times as fast when its inputs lie outside, which needs a copy; the others
are multiplied where they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RowProduct", "is_available", "needs_copy"]

_SMALLEST_CHUNK = 1 << 14  # elements: a thread with fewer waits longer for the others than it reads
_TILE = 512  # outputs that are transposed at once, so that both sides stay in the cache: 7 GB/s instead of 2


def is_available() -> bool:
    """Return whether this torch multiplies on the CPU with MKL."""
    return torch.backends.mkl.is_available()


def needs_copy(out_features: int, in_features: int) -> bool:
    """Return whether a weight of this shape is copied; others are read where they are, unless chunks do not divide them.

    Args:
        out_features: Outputs, those of all maps of the input together.
        in_features: Inputs.
    """
    return out_features >= 2 * in_features


class RowProduct:
    """x -> scale * (x Wᵀ) + b for a single row x, by one or several maps of the same input; there is no backward.

    Args:
        weights: Each (out, in) float32 on the CPU; the outputs follow each other.
        biases: Each (out,) float32, or None for no biases.
        scale: Factor on x Wᵀ.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None, scale: float = 1.0) -> None:
        self._out_features, in_features = sum(len(weight) for weight in weights), weights[0].shape[1]
        whole = weights[0] if len(weights) == 1 else None
        chunks = min(torch.get_num_threads(), max(1, self._out_features * in_features // _SMALLEST_CHUNK))
        is_view = whole is not None and not needs_copy(*whole.shape) and not len(whole) % chunks and whole.is_contiguous()
        if whole is not None and is_view:
            self._chunks = whole.detach().unflatten(0, (chunks, -1)).transpose(1, 2)
        else:
            self._chunks = _with_inputs_outside(weights, chunks)
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
            return self(hidden.view(1, 1, -1)).view(*hidden.shape[:-1], self._out_features)
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
    """Return a (C, in, width) copy: the outputs in chunks of one width, the last of a lone weight filled up with zeros."""
    is_even = all(weight.shape == weights[0].shape for weight in weights) and not len(weights[0]) % chunks
    parts = [weight.detach() for weight in weights] if is_even else [torch.cat([weight.detach() for weight in weights])]
    num_outputs, in_features = parts[0].shape
    width = -(-num_outputs // chunks)
    copy = (torch.empty if is_even else torch.zeros)(len(parts) * chunks, in_features, width)
    for number, chunk in enumerate(copy):
        rows = parts[number // chunks][number % chunks * width :][:width]
        for start in range(0, len(rows), _TILE):
            tile = rows[start : start + _TILE]
            chunk[:, start : start + len(tile)] = tile.T
    return copy
