"""Position as a bias on attention scores: T5's buckets, CPM's segments, ALiBi's slopes."""

import math

import torch
from torch import Tensor, nn

from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.layers.layout import Layout
from modelzoo.layers.linear import TensorSplit
from modelzoo.layers.rotary import Position

__all__ = ["AlibiBias", "RelativePositionBias", "SegmentPositionBias", "relative_buckets"]


def relative_buckets(distance: Tensor, *, num_buckets: int, max_distance: int, is_bidirectional: bool) -> Tensor:
    """Return the bucket of each distance: exact when near, logarithmic when far (Raffel et al., 2020, section 2.1).

    Equal to `T5Attention._relative_position_bucket` of transformers, for every distance.

    Args:
        distance: (...) int64, key column minus query column.
        num_buckets: At least 4, even when bidirectional.
        max_distance: From here on every distance falls into the last bucket; more than half of a direction's buckets.
        is_bidirectional: Keys after the query have half of the buckets to themselves; otherwise they count as distance 0.

    Returns:
        (...) int64 in [0, num_buckets).
    """
    if is_bidirectional:
        num_buckets //= 2
        offset = (distance > 0).long() * num_buckets
        distance = distance.abs()
    else:
        offset = torch.zeros_like(distance)
        distance = (-distance).clamp(min=0)
    exact = num_buckets // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far_bucket = (exact + far.long()).clamp(max=num_buckets - 1)
    return offset + torch.where(distance < exact, distance, far_bucket)


def _check_buckets(num_buckets: int, max_distance: int, is_bidirectional: bool) -> None:
    if num_buckets < 4:
        raise ValueError(f"num_buckets={num_buckets} must be at least 4")
    if is_bidirectional and num_buckets % 2:
        raise ValueError(f"num_buckets={num_buckets} must be even when bidirectional: half of them are for later keys")
    exact = num_buckets // 4 if is_bidirectional else num_buckets // 2
    if max_distance <= exact:
        raise ValueError(
            f"max_distance={max_distance} must be greater than {exact}, which {num_buckets} buckets tell apart exactly"
        )


def _column_pairs(query: Layout, key: Layout) -> list[tuple[Tensor, Tensor]]:
    """Return the columns of queries and keys: one pair a sequence when packed, one for the batch when dense."""
    if query.lengths is not None and key.lengths is not None:
        return list(zip(query.columns.split(query.lengths), key.key_columns(), strict=True))
    return [(query.columns, key.key_columns()[0])]


def _as_position(query: Layout, biases: list[Tensor]) -> Position:
    """Wrap (N, T, S) biases, one a sequence when packed, one for the batch when dense."""
    return Position(bias=tuple(biases) if query.is_packed else biases[0].unsqueeze(0))


class RelativePositionBias(nn.Module):
    """A learned bias for each head and bucket of distance, shared by the layers of a stack (T5, CPM-1, CPM-2).

    Args:
        num_heads: N.
        num_buckets: As in `relative_buckets`.
        max_distance: As in `relative_buckets`.
        is_bidirectional: True in encoders, False in decoders.
    """

    tensor_split: TensorSplit = "heads"
    """How a runtime may cut the bias. A declaration only: nothing here acts on it."""

    def __init__(self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, is_bidirectional: bool = True) -> None:
        super().__init__()
        _check_buckets(num_buckets, max_distance, is_bidirectional)
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_bidirectional = is_bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the table from N(0, std²)."""
        nn.init.normal_(self.weight, std=std)

    def forward(self, query: Layout, key: Layout | None = None) -> Position:
        """Return the bias of every query and key.

        Args:
            query: Layout of the queries.
            key: Layout of the keys; None for the queries' own.
        """
        pairs = _column_pairs(query, query if key is None else key)
        return _as_position(query, [self._bias(k.unsqueeze(0) - q.unsqueeze(1)) for q, k in pairs])

    def _bias(self, distance: Tensor) -> Tensor:
        buckets = relative_buckets(
            distance, num_buckets=self.num_buckets, max_distance=self.max_distance, is_bidirectional=self.is_bidirectional
        )
        return nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        kind = "bidirectional" if self.is_bidirectional else "causal"
        return f"{self.weight.shape[1]} heads, {self.num_buckets} buckets, max_distance={self.max_distance}, {kind}"


class SegmentPositionBias(nn.Module):
    """Relative buckets within a segment, one learned bias a pair of segments across (CPM-3, CPM-Ant).

    Equal to transformers' `CpmAntSegmentPositionEmbedding`; rows 0 to num_buckets - 1 of the table are distances, the rest pairs.

    Args:
        num_heads: N.
        num_segments: Kinds of segments.
        num_buckets: As in `relative_buckets`; always bidirectional.
        max_distance: As in `relative_buckets`.
    """

    tensor_split: TensorSplit = "heads"
    """How a runtime may cut the bias. A declaration only: nothing here acts on it."""

    def __init__(self, num_heads: int, *, num_segments: int, num_buckets: int = 512, max_distance: int = 2048) -> None:
        super().__init__()
        _check_buckets(num_buckets, max_distance, is_bidirectional=True)
        self.num_segments = num_segments
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(num_segments * num_segments + num_buckets, num_heads))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the table from N(0, std²)."""
        nn.init.normal_(self.weight, std=std)

    def forward(self, query: Layout, segments: Tensor, key: Layout | None = None, key_segments: Tensor | None = None) -> Position:
        """Return the bias of every query and key.

        Args:
            query: Layout of the queries.
            segments: Segment of each query, in [0, num_segments): (tokens,) when packed, (B, T) when dense.
            key: Layout of the keys; None for the queries' own.
            key_segments: Segment of each key, (key tokens,) or (B, S); None for the queries' own.
        """
        keys = query if key is None else key
        other = segments if key_segments is None else key_segments
        pairs = _column_pairs(query, keys)
        if query.lengths is not None and keys.lengths is not None:
            each = zip(pairs, segments.split(query.lengths), other.split(keys.lengths), strict=True)
            return Position(bias=tuple(self._bias(*columns, own, their) for columns, own, their in each))
        return Position(bias=self._bias(*pairs[0], segments, other))

    def _bias(self, columns: Tensor, key_columns: Tensor, segments: Tensor, key_segments: Tensor) -> Tensor:
        distance = key_columns.unsqueeze(-2) - columns.unsqueeze(-1)
        near = relative_buckets(distance, num_buckets=self.num_buckets, max_distance=self.max_distance, is_bidirectional=True)
        own, their = segments.unsqueeze(-1), key_segments.unsqueeze(-2)
        buckets = torch.where(own == their, near, own * self.num_segments + their + self.num_buckets)
        return nn.functional.embedding(buckets, self.weight).movedim(-1, -3)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        sizes = f"{self.num_segments} segments, {self.num_buckets} buckets, max_distance={self.max_distance}"
        return f"{self.weight.shape[1]} heads, {sizes}"


class AlibiBias(nn.Module):
    """A fixed penalty on distance, steeper from head to head (Press et al., 2022).

    Args:
        num_heads: N; slopes are 2^(-8 i / N) for a power of two, the paper's interleaved rule otherwise.
    """

    slopes: Tensor

    tensor_split: TensorSplit = "heads"
    """How a runtime may cut the bias. A declaration only: nothing here acts on it."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.register_buffer("slopes", torch.empty(num_heads), persistent=False)
        self.init_weights()

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Recompute the slopes, which no checkpoint holds; `std` has no part in it."""
        self.slopes = torch.tensor(_alibi_slopes(self.num_heads), dtype=torch.float32, device=self.slopes.device)

    def forward(self, query: Layout, key: Layout | None = None) -> Position:
        """Return the bias of every query and key: minus the slope times the distance in columns.

        Args:
            query: Layout of the queries.
            key: Layout of the keys; None for the queries' own.
        """
        if self.slopes.dtype != torch.float32:  # `to(torch.bfloat16)` of a model casts its buffers too
            self.init_weights()
        pairs = _column_pairs(query, query if key is None else key)
        return _as_position(query, [-self.slopes[:, None, None] * (k.unsqueeze(0) - q.unsqueeze(1)).abs() for q, k in pairs])

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return f"{self.num_heads} heads"


def _alibi_slopes(num_heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (num_heads - power), 2)]
