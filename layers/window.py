"""Attention within a sliding window in time and memory that grow with tokens x window, not with tokens x tokens.

The tokens of one sequence are cut into blocks at least as wide as the window. The queries of a block can see keys of their own
block and of its two neighbours (causal: of the one before), and the global tokens; one batched attention does all blocks at once.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.layers.layout import Layout

__all__ = ["WindowBlocks", "window_blocks"]

_LEAST_BLOCK = 16
_NOWHERE = -(1 << 40)  # the column of a key that stands beyond the ends: no window reaches it


@dataclass(frozen=True, eq=False)
class WindowBlocks:
    """How one sequence is cut, the same for every layer with this window.

    Attributes:
        size: C, tokens of a block.
        count: n, blocks.
        mask: (n, 1, C, W + G) bool: which keys of its W neighbours, and which of the G global ones, a query may attend to.
        is_causal: Whether a block has no neighbour after it: W is 2C, else 3C.
        global_places: (G,) int64 places of the global tokens in the sequence.
        global_mask: (G, T) bool, or None for all: what global queries may attend to.
    """

    size: int
    count: int
    mask: Tensor
    is_causal: bool
    global_places: Tensor
    global_mask: Tensor | None

    def queries(self, heads: Tensor) -> Tensor:
        """Cut queries: (T, N, H) to (n, N, C, H); the last block is filled up with zeros."""
        padded = F.pad(heads, (0, 0, 0, 0, 0, self.count * self.size - len(heads)))
        blocks: Tensor = padded.unflatten(0, (self.count, self.size))
        return blocks.transpose(1, 2)

    def keys(self, heads: Tensor) -> Tensor:
        """Give every block its keys or values: (T, K, H) to (n, K, W + G, H)."""
        size, after = self.size, 0 if self.is_causal else self.size
        padded = F.pad(heads, (0, 0, 0, 0, size, self.count * size - len(heads) + after))
        blocks = padded.unflatten(0, (-1, size))
        parts = [blocks[start : start + self.count] for start in range(2 if self.is_causal else 3)]
        if len(self.global_places):
            parts.append(heads[self.global_places].expand(self.count, -1, -1, -1))
        return torch.cat(parts, dim=1).transpose(1, 2)

    def joined(self, attended: Tensor, length: int) -> Tensor:
        """Put blocks together: (n, N, C, H) to (T, N, H)."""
        return attended.transpose(1, 2).flatten(0, 1)[:length]


def window_blocks(layout: Layout, *, window: int, is_causal: bool) -> tuple[WindowBlocks | None, ...]:
    """Return how each sequence of a packed layout is cut; None where it is so short that a mask over all pairs costs less.

    Args:
        layout: Packed, without a prefix.
        window: As of `attention_masks`.
        is_causal: As of `attention_masks`.
    """
    key = ("window blocks", window, is_causal)
    return layout.remember(key, lambda: _make(layout, window, is_causal))  # type: ignore[return-value]  # untyped memo


def _make(layout: Layout, window: int, is_causal: bool) -> tuple[WindowBlocks | None, ...]:
    assert layout.lengths is not None
    size = max(window - 1, _LEAST_BLOCK)
    flags = (None,) * len(layout.lengths) if layout.is_global is None else layout.is_global.split(layout.lengths)
    pieces = zip(layout.columns.split(layout.lengths), flags, strict=True)
    return tuple(None if len(columns) <= 2 * size else _cut(columns, flag, size, window, is_causal) for columns, flag in pieces)


def _cut(columns: Tensor, is_global: Tensor | None, size: int, window: int, is_causal: bool) -> WindowBlocks:
    count = -(-len(columns) // size)
    flag = torch.zeros_like(columns, dtype=torch.bool) if is_global is None else is_global
    places = flag.nonzero().squeeze(1)
    # Global keys have a place of their own at the end, and are taken out of the windows.
    near_columns = columns.masked_fill(flag, _NOWHERE)
    filled = count * size - len(columns)
    query = F.pad(columns, (0, filled)).unflatten(0, (count, size)).unsqueeze(-1)
    keys = F.pad(near_columns, (size, filled + (0 if is_causal else size)), value=_NOWHERE).unflatten(0, (-1, size))
    neighbours = torch.cat([keys[start : start + count] for start in range(2 if is_causal else 3)], dim=1).unsqueeze(1)
    ahead = query - neighbours
    allowed = ahead.abs() < window
    everywhere = torch.ones(count, size, len(places), dtype=torch.bool, device=columns.device)
    global_mask = None
    if is_causal:
        allowed = allowed & (ahead >= 0)
        everywhere = query >= columns[places]
        global_mask = columns[places].unsqueeze(1) >= columns
    mask = torch.cat([allowed, everywhere], dim=-1)
    mask = mask | ~mask.any(-1, keepdim=True)  # the zeros that fill up the last block
    return WindowBlocks(size, count, mask.unsqueeze(1), is_causal, places, global_mask)
