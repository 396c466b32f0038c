"""Residual blocks: a sublayer, its norm and its dropout; and a transformer block made of them.

In the words of Vaswani et al. (2017, section 3.1) a block is LayerNorm(x + Sublayer(x)) (post-norm), or, as most models since,
x + Sublayer(LayerNorm(x)) (pre-norm). The block owns its norm; which of the two it is, is an argument.
"""

from typing import Literal

from torch import Tensor, nn

from modelzoo.layers.attention import Attention
from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.dropout import Dropout
from modelzoo.layers.feed_forward import FeedForward
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.rotary import Position

__all__ = [
    "CrossAttentionBlock",
    "FeedForwardBlock",
    "NormPosition",
    "ParallelBlock",
    "SelfAttentionBlock",
    "TransformerBlock",
]

NormPosition = Literal["pre", "post"]

_NOWHERE = Position()


def _check_norm_position(norm_position: str) -> None:
    if norm_position not in ("pre", "post"):
        raise ValueError(f"norm_position={norm_position!r} is not known; use 'pre' or 'post'")


class SelfAttentionBlock(nn.Module):
    """Attention of a sequence to itself, with its norm and its residual connection.

    Args:
        attention: The sublayer.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the sublayer's input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added (MiniCPM).
    """

    def __init__(
        self,
        attention: Attention,
        norm: nn.Module,
        *,
        norm_position: NormPosition = "pre",
        dropout: float = 0.0,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        _check_norm_position(norm_position)
        self.norm_position = norm_position
        self.residual_scale = residual_scale
        self.sublayer = attention
        self.norm = norm
        self.dropout = Dropout(dropout)

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
        is_pre = self.norm_position == "pre"
        source = self.norm(hidden) if is_pre else hidden
        if selection is None:
            change = self.sublayer(source, layout, position=position, cache=cache)
        else:
            change = self.sublayer(
                selection.take(source), selection.layout, context=source, context_layout=layout, position=position, cache=cache
            )
            hidden = selection.take(hidden)
        return _add(hidden, change, self)

    def extra_repr(self) -> str:
        """What `print` shows of this block, beside its parts."""
        return _block_repr(self)


class CrossAttentionBlock(nn.Module):
    """Attention of a sequence to a context, with its norm and its residual connection.

    Args:
        attention: The sublayer.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the queries' side of the input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added.
    """

    def __init__(
        self,
        attention: Attention,
        norm: nn.Module,
        *,
        norm_position: NormPosition = "pre",
        dropout: float = 0.0,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        _check_norm_position(norm_position)
        self.norm_position = norm_position
        self.residual_scale = residual_scale
        self.sublayer = attention
        self.norm = norm
        self.dropout = Dropout(dropout)

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
        source = self.norm(hidden) if self.norm_position == "pre" else hidden
        change = self.sublayer(source, layout, context=context, context_layout=context_layout, position=position, cache=cache)
        return _add(hidden, change, self)

    def extra_repr(self) -> str:
        """What `print` shows of this block, beside its parts."""
        return _block_repr(self)


class FeedForwardBlock(nn.Module):
    """A feed-forward network, with its norm and its residual connection.

    Args:
        feed_forward: The sublayer; any module from (..., D) to (..., D), a mixture of experts too.
        norm: Norm over D, owned by the block.
        norm_position: "pre" normalises the sublayer's input, "post" the sum.
        dropout: Probability of dropping a feature of the sublayer's output in training.
        residual_scale: Factor on the sublayer's output before it is added.
    """

    def __init__(
        self,
        feed_forward: nn.Module,
        norm: nn.Module,
        *,
        norm_position: NormPosition = "pre",
        dropout: float = 0.0,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        _check_norm_position(norm_position)
        self.norm_position = norm_position
        self.residual_scale = residual_scale
        self.sublayer = feed_forward
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform and add.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., D) float.
        """
        source = self.norm(hidden) if self.norm_position == "pre" else hidden
        return _add(hidden, self.sublayer(source), self)

    def extra_repr(self) -> str:
        """What `print` shows of this block, beside its parts."""
        return _block_repr(self)


def _add(hidden: Tensor, change: Tensor, block: SelfAttentionBlock | CrossAttentionBlock | FeedForwardBlock) -> Tensor:
    """Add a sublayer's output to the residual stream, by the block's own options."""
    change = block.dropout(change)
    if block.residual_scale != 1.0:
        change = change * block.residual_scale
    total = hidden + change
    normalised: Tensor = block.norm(total) if block.norm_position == "post" else total
    return normalised


def _block_repr(block: SelfAttentionBlock | CrossAttentionBlock | FeedForwardBlock) -> str:
    scale = "" if block.residual_scale == 1.0 else f", residual_scale={block.residual_scale:.4g}"
    return f"norm_position={block.norm_position}{scale}"


class TransformerBlock(nn.Module):
    """One layer of a stack: self-attention, then cross-attention where there is a context, then feed-forward.

    This is the unit that a runtime shards, recomputes, prefetches and offloads.

    Args:
        self_attention: The first block.
        feed_forward: The last block.
        cross_attention: The middle block of an encoder-decoder's decoder; None elsewhere.
    """

    def __init__(
        self,
        self_attention: SelfAttentionBlock,
        feed_forward: FeedForwardBlock,
        cross_attention: CrossAttentionBlock | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        context: Tensor | None = None,
        context_layout: Layout | None = None,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
        context_cache: KeyValueCache | None = None,
        selection: Selection | None = None,
    ) -> Tensor:
        """Run the blocks in order.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`.
            context: (key tokens, C) or (B, S, C), for the cross-attention.
            context_layout: Arrangement of `context`.
            position: Rotary phases and score bias of the self-attention.
            cache: Earlier keys and values of the self-attention.
            context_cache: Keys and values of the context.
            selection: Compute the result of these tokens alone; None for all.

        Returns:
            The shape of `hidden`, or of the selected tokens, float.
        """
        hidden = self.self_attention(hidden, layout, position=position, cache=cache, selection=selection)
        if self.cross_attention is not None:
            if context is None or context_layout is None:
                raise ValueError("this block attends to a context; give context and context_layout")
            own = layout if selection is None else selection.layout
            hidden = self.cross_attention(hidden, own, context, context_layout, cache=context_cache)
        output: Tensor = self.feed_forward(hidden)
        return output


class ParallelBlock(nn.Module):
    """One layer whose attention and feed-forward read the same input and are added together: x + A(n(x)) + F(n'(x)).

    GPT-J shares one norm between them (`feed_forward_norm=None`), GPT-NeoX has two. Always pre-norm.

    Args:
        attention: Self-attention.
        feed_forward: From (..., D) to (..., D).
        norm: Norm over D.
        feed_forward_norm: The feed-forward's own norm; None to share `norm`.
        dropout: Probability of dropping a feature of either output in training.
    """

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        norm: nn.Module,
        *,
        feed_forward_norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.feed_forward_norm = feed_forward_norm
        self.attention = attention
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
        selection: Selection | None = None,
    ) -> Tensor:
        """Run both branches and add.

        Args:
            hidden: (tokens, D) packed or (B, T, D) dense.
            layout: Arrangement of `hidden`.
            position: Rotary phases and score bias.
            cache: Earlier keys and values; dense only.
            selection: Compute the result of these tokens alone; None for all.

        Returns:
            The shape of `hidden`, or of the selected tokens, float.
        """
        normed = self.norm(hidden)
        other = normed if self.feed_forward_norm is None else self.feed_forward_norm(hidden)
        if selection is None:
            attended = self.attention(normed, layout, position=position, cache=cache)
        else:
            attended = self.attention(
                selection.take(normed), selection.layout, context=normed, context_layout=layout, position=position, cache=cache
            )
            hidden, other = selection.take(hidden), selection.take(other)
        return hidden + self.dropout(attended) + self.dropout(self.feed_forward(other))
