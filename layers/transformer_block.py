"""One layer of a stack, made of residual blocks: the unit that a runtime shards, recomputes, prefetches and offloads."""

from typing import ClassVar

from torch import Tensor, nn

from modelzoo.layers.attention import Attention
from modelzoo.layers.blocks import CrossAttentionBlock, FeedForwardBlock, SelfAttentionBlock, check_selection
from modelzoo.layers.cache import KeyValueCache
from modelzoo.layers.dropout import Dropout
from modelzoo.layers.feed_forward import FeedForward
from modelzoo.layers.layout import Layout, Selection
from modelzoo.layers.rotary import Position

__all__ = ["ParallelBlock", "TransformerBlock"]

_NOWHERE = Position()


class TransformerBlock(nn.Module):
    """One layer of a stack: self-attention, then cross-attention where there is a context, then feed-forward.

    Args:
        self_attention: The first block.
        feed_forward: The last block.
        cross_attention: The middle block of an encoder-decoder's decoder; None elsewhere.
    """

    tensor_sliced: ClassVar[bool] = True
    """All parts but the sublayers treat each token by itself. A declaration only: nothing here acts on it."""

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

        Raises:
            ValueError: A context is missing, or given to a block without cross-attention.
        """
        hidden = self.self_attention(hidden, layout, position=position, cache=cache, selection=selection)
        if self.cross_attention is not None:
            if context is None or context_layout is None:
                raise ValueError("this block attends to a context; give context and context_layout")
            own = layout if selection is None else selection.layout
            hidden = self.cross_attention(hidden, own, context, context_layout, cache=context_cache)
        elif context is not None:
            raise ValueError("this block has no cross-attention; leave the context out")
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

    tensor_sliced: ClassVar[bool] = True
    """As of `TransformerBlock`."""
    tensor_sublayers: ClassVar[tuple[str, ...]] = ("attention", "feed_forward")
    """Parts that need all tokens. A declaration only: nothing here acts on it."""

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
        check_selection(selection, cache)
        normed = self.norm(hidden)
        other = normed if self.feed_forward_norm is None else self.feed_forward_norm(hidden)
        if selection is None:
            attended = self.attention(normed, layout, position=position, cache=cache)
        else:
            attended = self.attention(
                selection.take(normed), selection.layout, context=normed, context_layout=layout, position=position
            )
            hidden, other = selection.take(hidden), selection.take(other)
        total: Tensor = hidden + self.dropout(attended) + self.dropout(self.feed_forward(other))
        return total
