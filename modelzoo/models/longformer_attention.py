"""Attention within a window, beside global tokens with maps of their own (Beltagy et al., 2020, section 3)."""

import torch
from torch import Tensor, nn

from modelzoo.errors import ConfigError
from modelzoo.layers import Attention, KeyValueCache, Layout, Linear, Position
from modelzoo.layers.dot_product import dot_product_attention

__all__ = ["LongformerAttention"]


class LongformerAttention(nn.Module):
    """A token sees the tokens within the window and the global ones; a global token sees all, through maps of its own.

    The layout says which tokens are global (`Layout.is_global`). Keys and values that a local token sees are the local maps',
    those of global tokens too. No cache, and no positions but those of the embeddings.

    Args:
        hidden_size: D.
        num_heads: N, a divisor of D.
        window: A token sees tokens less than this many columns away.
        dropout: Probability of dropping an attention weight in training.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, window: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.local = Attention(hidden_size, num_heads, window=window, dropout=dropout)
        self.global_query = Linear(hidden_size, hidden_size, tensor_split="column")
        self.global_key = Linear(hidden_size, hidden_size, tensor_split="column")
        self.global_value = Linear(hidden_size, hidden_size, tensor_split="column")

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        context: Tensor | None = None,
        context_layout: Layout | None = None,
        position: Position | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            hidden: (tokens, D), packed.
            layout: Arrangement of `hidden`.
            context: (key tokens, D): what `hidden` was selected from; None for `hidden`.
            context_layout: Arrangement of `context`.
            position: Not used: positions are in the embeddings.
            cache: None.

        Returns:
            (tokens, D) float.

        Raises:
            ConfigError: A cache was given.
        """
        if cache is not None:
            raise ConfigError("a Longformer is an encoder and has no cache; leave the cache out")
        attended = self.local.attend(hidden, layout, context=context, context_layout=context_layout)
        key_layout = layout if context_layout is None else context_layout
        rows = [] if layout.is_global is None else _global_rows(layout)
        if any(len(places) for places in rows):
            wide = self._attend_globally(hidden, rows, hidden if context is None else context, key_layout)
            attended = attended.index_copy(0, torch.cat(rows), wide)
        output: Tensor = self.local.output(attended)
        return output

    def _attend_globally(self, hidden: Tensor, rows: list[Tensor], source: Tensor, key_layout: Layout) -> Tensor:
        """Return what the global tokens see of their sequences: (global tokens, D)."""
        assert key_layout.lengths is not None
        heads = (self.local.num_heads, self.local.head_size)
        queries = self.global_query(hidden[torch.cat(rows)]).unflatten(-1, heads).split([len(places) for places in rows])
        keys = self.global_key(source).unflatten(-1, heads).split(key_layout.lengths)
        values = self.global_value(source).unflatten(-1, heads).split(key_layout.lengths)
        pieces = []
        for parts in zip(queries, keys, values, strict=True):
            if len(parts[0]):
                query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in parts)
                pieces.append(self._dot_product(query, key, value).squeeze(0).transpose(0, 1).flatten(1))
        return torch.cat(pieces)

    def _dot_product(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout = self.local.dropout if self.training else 0.0
        scale = self.local.scale
        return dot_product_attention(query, key, value, mask=None, bias=None, scale=scale, dropout=dropout, is_causal=False)


def _global_rows(layout: Layout) -> list[Tensor]:
    """Return the places of each sequence's global tokens among all tokens, found once for all layers."""

    def find() -> list[Tensor]:
        assert layout.lengths is not None
        assert layout.is_global is not None
        places = torch.arange(len(layout.is_global), device=layout.is_global.device)
        pieces = zip(places.split(layout.lengths), layout.is_global.split(layout.lengths), strict=True)
        return [own[flag] for own, flag in pieces]

    return layout.remember("places of global tokens", find)  # type: ignore[return-value]  # untyped memo
