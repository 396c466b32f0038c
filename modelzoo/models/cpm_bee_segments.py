"""CPM-Bee's segments: which a token is in, how two of them are related, and the bias of both."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.errors import DataError
from modelzoo.layers import Layout, Position
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.layers.linear import TensorSplit
from modelzoo.layers.position_bias import relative_buckets
from modelzoo.models.inputs import check_shape

__all__ = ["RelationBias", "SegmentMarks", "check_segments"]


class SegmentMarks(NamedTuple):
    """Which segment each token is in, and how the segments of a row are related."""

    ids: Tensor
    """(B, T) int64: segment of each token within its sample."""
    counts: Tensor
    """(B, T) int64: segments of the token's sample."""
    offsets: Tensor
    """(B, T) int64: where the token's sample begins in `relations`."""
    relations: Tensor
    """(B, R) int64 in [0, num_segment_buckets]: for each sample a square of buckets, query's segment by key's; 0 in one segment."""


def check_segments(segments: SegmentMarks, mask: Tensor, num_buckets: int) -> None:
    """Refuse marks that do not fit the tokens or each other.

    Args:
        segments: Of (B, T) tokens.
        mask: (B, T), not 0 where there is a token.
        num_buckets: Relations that the model tells apart.

    Raises:
        DataError: A shape does not fit, or a number is out of range.
    """
    for name in ("ids", "counts", "offsets"):
        check_shape(f"segments.{name}", getattr(segments, name), mask)
    ids, counts, offsets = (each[mask != 0] for each in segments[:3])
    shape = tuple(segments.relations.shape)
    needed = int((offsets + counts * counts).max()) if len(ids) else 0
    if len(shape) != 2 or shape[0] != len(mask) or shape[1] < needed:
        raise DataError(
            f"segments.relations: expected {len(mask)} rows of at least {needed}, offsets and squared counts, found {shape}"
        )
    if bool(((ids < 0) | (ids >= counts)).any()):
        raise DataError(f"segments.ids: expected numbers from 0, below the counts, found {int(ids.min())} to {int(ids.max())}")
    low, high = torch.stack(torch.aminmax(segments.relations)).tolist() if segments.relations.numel() else (0, 0)
    if low < 0 or high > num_buckets:
        raise DataError(f"segments.relations: {low if low < 0 else high} is not in 0 to {num_buckets} (num_segment_buckets)")


class RelationBias(nn.Module):
    """A learned bias for each bucket of distance within a segment and each relation of two segments.

    Args:
        num_heads: N.
        num_buckets: Of distances.
        max_distance: Distance from which on every pair is in the last bucket.
        num_relations: Buckets of relations.
    """

    tensor_split: TensorSplit = "heads"
    """How a runtime may cut the bias. A declaration only: nothing here acts on it."""

    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int, num_relations: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(num_buckets + num_relations, num_heads))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the table from N(0, std²)."""
        nn.init.normal_(self.weight, std=std)

    def forward(self, query_columns: Tensor, key_columns: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the (..., N, T, S) bias of pairs whose `relation` (..., T, S) is given; None where all are in one segment."""
        distance = key_columns.unsqueeze(-2) - query_columns.unsqueeze(-1)
        buckets = relative_buckets(distance, num_buckets=self.num_buckets, max_distance=self.max_distance, is_bidirectional=True)
        if relation is not None:
            buckets = torch.where(relation == 0, buckets, relation - 1 + self.num_buckets)
        return F.embedding(buckets, self.weight).movedim(-1, -3)

    def of_sequences(self, layout: Layout, segments: SegmentMarks | None, samples: Tensor | None) -> Position:
        """Return the bias of each sequence of a packed layout.

        Args:
            layout: Packed.
            segments: Of its padded form; None for one segment a row.
            samples: (B, T) int64; pairs that they keep apart get minus infinity. None for one sample.
        """
        assert layout.lengths is not None
        assert layout.indices is not None
        columns = layout.columns.split(layout.lengths)
        if segments is None and samples is None:
            return Position(bias=tuple(self(each, each) for each in columns))
        numbers = layout.indices.new_zeros(layout.batch_shape) if samples is None else samples
        owners = (layout.indices // layout.batch_shape[1]).split(layout.lengths)
        own = layout.pack(numbers).split(layout.lengths)
        marks = None if segments is None else [layout.pack(each).split(layout.lengths) for each in segments[:3]]
        biases = []
        for index, (places, sample) in enumerate(zip(columns, own, strict=True)):
            same = sample.unsqueeze(1) == sample
            if segments is None or marks is None:
                relation = (~same).long()
            else:
                ids, counts, offsets = (each[index] for each in marks)
                pair = (ids * counts + offsets).unsqueeze(1) + ids
                table = segments.relations[owners[index][0]] if len(places) else segments.relations[0]
                relation = torch.where(same, table[pair.masked_fill(~same, 0)], 1)
            seen = same | (sample == 0).unsqueeze(1)
            biases.append(self(places, places, relation).masked_fill(~seen, float("-inf")))
        return Position(bias=tuple(biases))

    def of_rows(self, layout: Layout, segments: SegmentMarks | None, samples: Tensor | None = None) -> Position:
        """Return the bias of the queries of a dense layout and all keys so far.

        Args:
            layout: Dense.
            segments: Of all S keys, the queries last; None for one segment a row.
            samples: (B, S) int64 of all keys; pairs that they keep apart get minus infinity. None for one sample; with segments.
        """
        keys = torch.arange(layout.start + layout.batch_shape[1], device=layout.columns.device)
        if segments is None:
            return Position(bias=self(layout.columns, keys).unsqueeze(0))
        ids, counts, offsets = (each[:, layout.start :].unsqueeze(2) for each in segments[:3])
        pair = ids * counts + offsets + segments.ids.unsqueeze(1)
        if samples is None:
            relation = segments.relations.gather(1, pair.flatten(1)).unflatten(1, pair.shape[1:])
            return Position(bias=self(layout.columns, keys, relation))
        own = samples[:, layout.start :].unsqueeze(2)
        same = own == samples.unsqueeze(1)
        known = segments.relations.gather(1, pair.masked_fill(~same, 0).flatten(1)).unflatten(1, pair.shape[1:])
        bias = self(layout.columns, keys, torch.where(same, known, 1))
        return Position(bias=bias.masked_fill(~(same | (own == 0)).unsqueeze(1), float("-inf")))
