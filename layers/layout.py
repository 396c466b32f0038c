"""Where the rows of a hidden tensor stand: in which sequence, at which place.

A batch of ids comes in as (B, T), padded to its longest sequence. A model drops the padding at its door: `Layout.packed` remembers
where the real tokens were, `pack` takes them out, the blocks work on (tokens, D) alone, and `unpack` puts the result back. On
question-answering batches nearly half of the padded tokens are padding, and every matrix product skips it.

A `Layout.dense` batch keeps its (B, T, D) form: when nothing is padded, and when decoding with a cache.

A rule that depends on the order of tokens (causal, window) looks at `columns`, a token's place in its row of the batch;
`positions` are what embeddings and rotary phases see and may be anything.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Layout", "Selection"]


@dataclass(frozen=True, eq=False)
class Layout:
    """The arrangement of one batch of tokens; made by `Layout.packed` or `Layout.dense`.

    Attributes:
        batch_shape: (B, T) of the padded form.
        columns: Place of each token in its row of the batch: (tokens,) packed, (T,) dense.
        positions: Positions for embeddings and rotary phases: (tokens,) packed, (B, T) or (1, T) dense.
        lengths: Packed only: real tokens of each sequence; they add up to `tokens`. None when dense.
        indices: Packed only: (tokens,) places of the real tokens in the flattened (B * T).
        mask: Dense only: (B, S) bool of the keys that hold a token, or None when all do.
        prefix: Leading tokens of each sequence that every query of it may see, whatever the order rule; None for no prefix.
        context: Bool of the keys: tokens, anywhere in a sequence, that every query of it may see and that see no others (CPM);
            (tokens,) packed, (B, S) dense. None for no context.
        start: Dense only: column of the first token; the keys are columns 0 to start + T - 1.
        is_global: Packed only: (tokens,) bool of the tokens that a window does not bind: they see all of their sequence, and all
            see them (Longformer); None for none.
        lead: Keys that every sequence has before its own, in columns -lead to -1, and sees (an adapter's prefix); tokens count
            their positions behind them.
    """

    batch_shape: tuple[int, int]
    columns: Tensor
    positions: Tensor
    lengths: tuple[int, ...] | None = None
    indices: Tensor | None = None
    mask: Tensor | None = None
    prefix: tuple[int, ...] | None = None
    context: Tensor | None = None
    start: int = 0
    is_global: Tensor | None = None
    lead: int = 0
    _memo: dict[Hashable, object] = field(default_factory=dict, repr=False)

    @staticmethod
    def packed(
        mask: Tensor,
        positions: Tensor | None = None,
        *,
        spans: Tensor | None = None,
        prefix: Sequence[int] | None = None,
        context: Tensor | None = None,
        is_global: Tensor | None = None,
        lead: int = 0,
    ) -> "Layout":
        """Keep the real tokens of a padded batch.

        Args:
            mask: (B, T) int or bool, non-zero where there is a token; padding may stand on either side or within.
            positions: (B, T) int64; None for a token's column behind the lead.
            spans: (B, T) int: tokens of one row attend to each other only within equal neighbouring values (several texts in one
                row); None for one text a row.
            prefix: As the attribute, one entry a sequence (a row, or a span of it).
            context: As the attribute, (B, T).
            is_global: As the attribute, (B, T) int or bool.
            lead: As the attribute.
        """
        rows, width = mask.shape
        present = mask.bool()
        indices = present.flatten().nonzero().squeeze(1)
        columns = indices % width
        picked = columns + lead if positions is None else positions.expand(rows, width).flatten()[indices]
        if spans is None:
            lengths = tuple(present.sum(1).tolist())
        else:
            owner = torch.stack([indices // width, spans.flatten()[indices]])
            lengths = tuple(torch.unique_consecutive(owner, dim=1, return_counts=True)[1].tolist())
        seen = None if context is None else context.bool().flatten()[indices]
        given = None if prefix is None else tuple(prefix)
        free = None if is_global is None else is_global.bool().flatten()[indices]
        return Layout((rows, width), columns, picked, lengths, indices, prefix=given, context=seen, is_global=free, lead=lead)

    @staticmethod
    def dense(
        rows: int,
        width: int,
        *,
        start: int = 0,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        prefix: Sequence[int] | None = None,
        context: Tensor | None = None,
        device: torch.device | str | None = None,
        lead: int = 0,
    ) -> "Layout":
        """Keep the (B, T, D) form.

        Args:
            rows: Sequences, B.
            width: Tokens of each, T.
            start: Column of the first token: the tokens that a cache already holds.
            positions: (B, T) or (1, T) int64; None for a token's column behind the lead.
            mask: (B, S) bool or int, non-zero where a key holds a token; None when all do.
            prefix: As the attribute.
            context: As the attribute.
            device: Of the columns; None for the default device.
            lead: As the attribute.
        """
        columns = torch.arange(start, start + width, device=device)
        placed = columns.unsqueeze(0) + lead if positions is None else positions
        present = None if mask is None else mask.bool()
        given = None if prefix is None else tuple(prefix)
        seen = None if context is None else context.bool()
        return Layout((rows, width), columns, placed, mask=present, prefix=given, context=seen, start=start, lead=lead)

    @property
    def token_shape(self) -> tuple[int, ...]:
        """The shape of the hidden states without their last dimension: (tokens,) when packed, (B, T) when dense."""
        return self.batch_shape if self.lengths is None else (sum(self.lengths),)

    @property
    def is_packed(self) -> bool:
        """Whether hidden tensors are (tokens, D) rather than (B, T, D)."""
        return self.lengths is not None

    def key_columns(self) -> list[Tensor]:
        """Return the columns of the keys, the lead's first: (keys,) int64 of each sequence when packed, of the batch when dense."""
        if self.lengths is None:
            return [torch.arange(-self.lead, self.start + self.batch_shape[1], device=self.columns.device)]
        own = self.columns.split(self.lengths)
        lead = torch.arange(-self.lead, 0, device=self.columns.device)
        return [torch.cat([lead, each]) for each in own] if self.lead else list(own)

    def pack(self, padded: Tensor) -> Tensor:
        """Take the real tokens out of a padded tensor.

        Args:
            padded: (B, T, ...) of any dtype.

        Returns:
            (tokens, ...) when packed, `padded` itself when dense.
        """
        return padded if self.indices is None else padded.flatten(0, 1)[self.indices]

    def unpack(self, hidden: Tensor) -> Tensor:
        """Put the tokens back where they were; padding becomes zeros.

        Args:
            hidden: (tokens, ...) when packed, (B, T, ...) when dense.

        Returns:
            (B, T, ...).
        """
        if self.indices is None:
            return hidden
        rows, width = self.batch_shape
        flat = hidden.new_zeros((rows * width, *hidden.shape[1:])).index_copy(0, self.indices, hidden)
        padded: Tensor = flat.unflatten(0, (rows, width))
        return padded

    def first_rows(self) -> "Selection":
        """Select the first real token of every row of the batch that has one (the [CLS] of an encoder).

        Raises:
            ValueError: The layout is dense and has a mask: its rows may begin at different columns.
        """
        return self._ends(is_last=False)

    def last_rows(self) -> "Selection":
        """Select the last real token of every row of the batch that has one (what a causal model classifies).

        Raises:
            ValueError: As `first_rows`.
        """
        return self._ends(is_last=True)

    def _ends(self, *, is_last: bool) -> "Selection":
        rows, width = self.batch_shape
        if self.indices is None or self.lengths is None:
            return self._dense_ends(is_last=is_last)
        row_numbers = torch.arange(rows, device=self.indices.device)
        places = torch.searchsorted(self.indices, row_numbers * width + (width if is_last else 0)) - (1 if is_last else 0)
        inside = (places >= 0) & (places < len(self.indices))
        owners = torch.full_like(row_numbers, -1)
        owners[inside] = self.indices[places[inside]] // width
        filled = owners == row_numbers
        taken, batch_rows = places[filled], filled.nonzero().squeeze(1)
        ends, chosen = list(itertools.accumulate(self.lengths)), set(taken.tolist())
        starts = [end - length for end, length in zip(ends, self.lengths, strict=True)]
        # One entry a sequence, as in the full layout: of the spans of a row, the others have no query.
        lengths = tuple(
            sum(place in chosen for place in {start, end - 1} if start < end) for start, end in zip(starts, ends, strict=True)
        )
        context = None if self.context is None else self.context[taken]
        free = None if self.is_global is None else self.is_global[taken]
        columns, positions = self.columns[taken], self.positions[taken]
        layout = Layout((rows, 1), columns, positions, lengths, batch_rows, context=context, is_global=free)
        return Selection(layout, lambda hidden: hidden[taken], lambda kept: layout.unpack(kept)[:, 0])

    def _dense_ends(self, *, is_last: bool) -> "Selection":
        """Select the first or the last column."""
        if self.mask is not None:
            raise ValueError("the ends of a dense layout are known only without a mask; use Layout.packed")
        place = slice(-1, None) if is_last else slice(0, 1)
        context = None if self.context is None else self.context[:, place]
        layout = Layout((self.batch_shape[0], 1), self.columns[place], self.positions[:, place], context=context)
        return Selection(layout, lambda hidden: hidden[:, place], lambda kept: kept[:, 0])

    def remember(self, key: Hashable, make: Callable[[], object]) -> object:
        """Return what `make` returned the first time for this key: masks are the same in every layer of a stack."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]


class Selection(NamedTuple):
    """Some tokens of a layout, one a row of the batch, for a last layer that computes nothing else.

    Attributes:
        layout: The selected tokens' own layout, of batch shape (B, 1).
        take: Picks the selected tokens from a hidden tensor of the full layout.
        spread: Turns the selected tokens into (B, D); a row without a token becomes zeros.
    """

    layout: Layout
    take: Callable[[Tensor], Tensor]
    spread: Callable[[Tensor], Tensor]
