"""Stacks of transformer blocks: an encoder that sees everything, a decoder that may have caches and a context."""

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.rotary import Position

__all__ = ["Decoder", "Encoder"]


class Encoder(nn.Module):
    """Blocks one after the other, on packed or dense tokens; no cache, no context.

    Args:
        blocks: `TransformerBlock` or `ParallelBlock` modules.
        norm: Applied after the last block (pre-norm stacks); None for none.
        position: A module from layouts to a `Position` (rotary, relative bias, ALiBi), shared by all blocks; None for none.
    """

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module | None = None, position: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.norm = norm
        self.position = position

    def forward(
        self, hidden: Tensor, layout: Layout, *, position: Position | None = None, selection: Selection | None = None
    ) -> Tensor:
        """Run the blocks.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`.
            position: What the attention layers are told about positions, when the stack cannot derive it from the layout alone
                (segments); None to ask the stack's own position module.
            selection: The only tokens whose result is wanted: the last block then computes no others, which saves a classifier
                more than half of that block. None for all.

        Returns:
            The shape of `hidden`, or of the selected tokens, float.
        """
        if position is not None and selection is not None:
            raise ValueError("a position given from outside holds every token's; give no selection with it")
        if position is None:
            position = self._position(layout)
        last = len(self.layers) if selection is None else len(self.layers) - 1
        for block in self.layers[:last]:
            hidden = block(hidden, layout, position=position)
        if selection is not None:
            position = self._position(selection.layout, layout)
            hidden = self.layers[-1](hidden, layout, position=position, selection=selection)
        return hidden if self.norm is None else self.norm(hidden)

    def _position(self, query: Layout, key: Layout | None = None) -> Position:
        given: Position = Position() if self.position is None else self.position(query, key)
        return given


class Decoder(nn.Module):
    """Blocks one after the other, with optional caches and an optional context; causality is the blocks' own.

    Args:
        blocks: `TransformerBlock` or `ParallelBlock` modules.
        norm: Applied after the last block (pre-norm stacks); None for none.
        position: A module from layouts to a `Position`, shared by the self-attention of all blocks; None for none.
    """

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module | None = None, position: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.norm = norm
        self.position = position

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        context: Tensor | None = None,
        context_layout: Layout | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        context_caches: Sequence[KeyValueCache] | None = None,
        position: Position | None = None,
    ) -> Tensor:
        """Run the blocks.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`; with caches, dense and starting where they end.
            context: (key tokens, C) or (B, S, C), for blocks with cross-attention.
            context_layout: Arrangement of `context`.
            caches: One a block, for the self-attention.
            context_caches: One a block, for the cross-attention.
            position: As in `Encoder.forward`.

        Returns:
            The shape of `hidden`, float.
        """
        if position is None:
            position = Position() if self.position is None else self.position(layout)
        options: dict[str, object] = {"position": position}
        if context is not None:
            options |= {"context": context, "context_layout": context_layout}
        for index, block in enumerate(self.layers):
            if caches is not None:
                options["cache"] = caches[index]
            if context_caches is not None:
                options["context_cache"] = context_caches[index]
            hidden = block(hidden, layout, **options)
        return hidden if self.norm is None else self.norm(hidden)
