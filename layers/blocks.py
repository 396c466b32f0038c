"""Residual blocks: a sublayer, its norm and its dropout.

In the words of Vaswani et al. (2017, section 3.1) a block is LayerNorm(x + Sublayer(x)) (post-norm), or, as most models since,
x + Sublayer(LayerNorm(x)) (pre-norm). The block owns its norm; which of the two it is, is an argument.
"""

from typing import ClassVar, Literal

from torch import Tensor, nn

from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.dropout import Dropout
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.rotary import Position

__all__ = [
    "CrossAttentionBlock",
    "FeedForwardBlock",
    "NormPosition",
    "SelfAttentionBlock",
]

NormPosition = Literal["pre", "post"]

_NOWHERE = Position()


def check_selection(selection: Selection | None, cache: KeyValueCache | None) -> None:
    """Refuse a selection together with a cache.

    Raises:
        ValueError: Both were given.
    """
    if selection is not None and cache is not None:
        raise ValueError("a selection and a cache were given; a cache has to see every token, so leave the selection out")


class _ResidualBlock(nn.Module):
    """A sublayer, its norm and its dropout, and how their result is added to what came in."""

    tensor_sublayers: ClassVar[tuple[str, ...]] = ("sublayer",)
    """Parts that need all tokens; the others treat each token by itself. A declaration only: nothing here acts on it."""

    def __init__(
        self,
        sublayer: nn.Module,
        norm: nn.Module,
        *,
        norm_position: NormPosition = "pre",
        dropout: float = 0.0,
        residual_scale: float = 1.0,
        sum_scale: float = 1.0,
    ) -> None:
        super().__init__()
        if norm_position not in ("pre", "post"):
            raise ValueError(f"norm_position={norm_position!r} is not known; use 'pre' or 'post'")
        self.norm_position = norm_position
        self.residual_scale = residual_scale
        self.sum_scale = sum_scale
        self.sublayer = sublayer
        self.norm = norm
        self.dropout = Dropout(dropout)

    def _source(self, hidden: Tensor) -> Tensor:
        """Return what the sublayer reads."""
        source: Tensor = self.norm(hidden) if self.norm_position == "pre" else hidden
        return source

    def _added(self, hidden: Tensor, change: Tensor) -> Tensor:
        """Add the sublayer's output to the residual stream."""
        change = self.dropout(change)
        if self.residual_scale != 1.0:
            change = change * self.residual_scale
        total = hidden + change
        if self.sum_scale != 1.0:
            total = total * self.sum_scale
        normalised: Tensor = self.norm(total) if self.norm_position == "post" else total
        return normalised

    def extra_repr(self) -> str:
        """What `print` shows of this block, beside its parts."""
        scales = [(name, getattr(self, name)) for name in ("residual_scale", "sum_scale")]
        return f"norm_position={self.norm_position}" + "".join(f", {name}={scale:.4g}" for name, scale in scales if scale != 1.0)


class SelfAttentionBlock(_ResidualBlock):
    """Attention of a sequence to itself, with its norm and its residual connection.

    Args:
        sublayer: An `Attention`, or a module with its arguments.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the sublayer's input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added (MiniCPM).
        sum_scale: Factor on the sum (CPM-Bee).
    """

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
        selection: Selection | None = None,
    ) -> Tensor:
        """Attend and add.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`.
            position: Rotary phases and score bias; with a selection, those of the selected queries.
            cache: Earlier keys and values; dense only.
            selection: Compute the result of these tokens alone; None for all.

        Returns:
            The shape of `hidden`, or of the selected tokens, float.
        """
        check_selection(selection, cache)
        source = self._source(hidden)
        if selection is None:
            change = self.sublayer(source, layout, position=position, cache=cache)
        else:
            change = self.sublayer(
                selection.take(source), selection.layout, context=source, context_layout=layout, position=position
            )
            hidden = selection.take(hidden)
        return self._added(hidden, change)


class CrossAttentionBlock(_ResidualBlock):
    """Attention of a sequence to a context, with its norm and its residual connection.

    Args:
        sublayer: An `Attention`.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the queries' side of the input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added.
        sum_scale: Factor on the sum (CPM-Bee).
    """

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        context: Tensor,
        context_layout: Layout,
        *,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend and add.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`.
            context: (key tokens, C) or (B, S, C).
            context_layout: Arrangement of `context`, packed or dense as `layout` is.
            position: Rotary phases and score bias.
            cache: Where the context's keys and values are stored once; dense only.

        Returns:
            The shape of `hidden`, float.
        """
        source = self._source(hidden)
        change = self.sublayer(source, layout, context=context, context_layout=context_layout, position=position, cache=cache)
        return self._added(hidden, change)


class FeedForwardBlock(_ResidualBlock):
    """A feed-forward network, with its norm and its residual connection.

    Args:
        sublayer: Any module from (..., D) to (..., D), a mixture of experts too.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the sublayer's input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added.
        sum_scale: Factor on the sum (CPM-Bee).
    """

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform and add.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., D) float.
        """
        return self._added(hidden, self.sublayer(self._source(hidden)))
