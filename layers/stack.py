"""Stacks of transformer blocks: an encoder that sees everything, a decoder that may have caches and a context."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from torch import Tensor, nn

from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.rotary import Position

__all__ = ["Decoder", "Encoder", "StackAdapter"]


class StackAdapter(Protocol):
    """What fine-tuning may set as the `adapter` of a stack: keys and values before those of every self-attention."""

    num_tokens: int
    """P, keys of each block."""

    def __call__(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Return (P, K, H) float keys and values of each block, all heads."""


class _Stack(nn.Module):
    """Blocks one after the other, the position modules that they share, and a last norm."""

    tensor_shared: ClassVar[tuple[str, ...]] = ("adapter",)
    """Parts of which each process of a tensor axis uses some heads only, so that gradients of their whole weights are summed."""

    def __init__(
        self, blocks: Iterable[nn.Module], norm: nn.Module | None, position: nn.Module | Sequence[nn.Module] | None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        if not len(self.layers):
            raise ValueError("a stack needs at least one block, found none")
        self.norm = norm
        self.position = position if isinstance(position, nn.Module) else None
        each = [] if position is None else [position] * len(self.layers) if isinstance(position, nn.Module) else list(position)
        if each and len(each) != len(self.layers):
            raise ValueError(f"{len(each)} position modules were given to a stack of {len(self.layers)} blocks; give one a block")
        kinds = list({id(module): module for module in each}.values())
        self.positions = nn.ModuleList(kinds) if self.position is None and kinds else None
        self.adapter: StackAdapter | None = None
        """A module that puts keys and values before every block's own; None for none."""
        self._position_of = [next(index for index, kind in enumerate(kinds) if kind is module) for module in each]

    @property
    def lead(self) -> int:
        """Keys that stand before every sequence: the `lead` of its layout, or of its caches."""
        return 0 if self.adapter is None else self.adapter.num_tokens

    def _told(self, layout: Layout, selection: Selection | None, given: Position | None) -> list[Position]:
        """Return what each block is told: about positions, and its part of a prefix."""
        positions = self._positions(layout, selection, given)
        if self.adapter is None:
            return positions
        return [each._replace(prefix=own) for each, own in zip(positions, self.adapter(), strict=True)]

    def _positions(self, layout: Layout, selection: Selection | None, given: Position | None) -> list[Position]:
        """Return what each block is told about positions."""
        count = len(self.layers)
        if given is not None:
            if selection is not None:
                raise ValueError("a position given from outside holds every token's; give no selection with it")
            return [given] * count
        modules = list(self.positions) if self.positions is not None else [self.position] if self.position is not None else []
        if not modules:
            return [Position()] * count
        kinds: list[Position] = [module(layout) for module in modules]
        found = [kinds[index] for index in self._position_of]
        if selection is not None:
            found[-1] = modules[self._position_of[-1]](selection.layout, layout)
        return found


class Encoder(_Stack):
    """Blocks one after the other, on packed or dense tokens; no cache, no context.

    Args:
        blocks: `TransformerBlock` or `ParallelBlock` modules.
        norm: Applied after the last block (pre-norm stacks); None for none.
        position: A module from layouts to a `Position` (rotary, relative bias, ALiBi), shared by all blocks; a sequence of one a
            block, where the same module may stand more than once (ModernBERT); None for none.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm: nn.Module | None = None,
        position: nn.Module | Sequence[nn.Module] | None = None,
    ) -> None:
        super().__init__(blocks, norm, position)

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
        positions = self._told(layout, selection, position)
        for block, each in zip(self.layers[:-1], positions, strict=False):  # the last block comes after
            hidden = block(hidden, layout, position=each)
        hidden = self.layers[-1](hidden, layout, position=positions[-1], selection=selection)
        return hidden if self.norm is None else self.norm(hidden)


class Decoder(_Stack):
    """Blocks one after the other, with optional caches and an optional context; causality is the blocks' own.

    Args:
        blocks: `TransformerBlock` or `ParallelBlock` modules.
        norm: Applied after the last block (pre-norm stacks); None for none.
        position: As of `Encoder`, for the self-attention.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm: nn.Module | None = None,
        position: nn.Module | Sequence[nn.Module] | None = None,
    ) -> None:
        super().__init__(blocks, norm, position)

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
        selection: Selection | None = None,
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
            selection: As in `Encoder.forward`; not with caches, which need every token's keys.

        Returns:
            The shape of `hidden`, or of the selected tokens, float.

        Raises:
            ValueError: There is not one cache a block, or a selection is given with what needs every token.
        """
        if caches is not None and selection is not None:
            raise ValueError("caches hold every token's keys; give no selection with them")
        for name, given in (("caches", caches), ("context_caches", context_caches)):
            if given is not None and len(given) != len(self.layers):
                raise ValueError(f"{len(given)} {name} were given to a stack of {len(self.layers)} blocks; give one a block")
        positions = self._told(layout, selection, position)
        last = len(self.layers) - 1
        shared: dict[str, object] = {} if context is None else {"context": context, "context_layout": context_layout}
        for index, block in enumerate(self.layers):
            options = dict(shared, position=positions[index])
            if caches is not None:
                options["cache"] = caches[index]
            if context_caches is not None:
                options["context_cache"] = context_caches[index]
            if index == last:
                options["selection"] = selection
            hidden = block(hidden, layout, **options)
        return hidden if self.norm is None else self.norm(hidden)
