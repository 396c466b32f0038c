"""Multi-head attention: self and cross, grouped key/value heads, on packed or padded tokens, with or without a cache."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from modelzoo.layers.cache import KeyValueCache, after_prefix
from modelzoo.layers.dot_product import dot_product_attention
from modelzoo.layers.layout import Layout
from modelzoo.layers.linear import Linear
from modelzoo.layers.masks import attention_masks
from modelzoo.layers.rotary import Position, apply_rotary
from modelzoo.layers.window import WindowBlocks, window_blocks

__all__ = ["Attention"]

_NOWHERE = Position()


def _check_heads(num_heads: int, num_key_value_heads: int, window: int | None, dropout: float) -> None:
    for name, count in (("num_heads", num_heads), ("num_key_value_heads", num_key_value_heads)):
        if count < 1:
            raise ValueError(f"{name}={count} must be at least 1")
    if num_heads % num_key_value_heads:
        raise ValueError(f"num_key_value_heads={num_key_value_heads} does not divide num_heads={num_heads}")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1, or None for no window")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout} must lie in 0 to 1")


class Attention(nn.Module):
    """softmax(scale * q kᵀ + bias) v over N heads (Vaswani et al., 2017, section 3.2).

    Scores and softmax are float32 when the input is half precision. On packed tokens each sequence attends to itself alone, so that
    padding costs nothing and texts in one batch cannot see each other.

    Args:
        hidden_size: D, width of input and output.
        num_heads: N.
        num_key_value_heads: K, a divisor of N; query heads share them in groups. None for N.
        head_size: H; None for hidden_size / num_heads, which must then be whole.
        context_size: Width of the context that keys and values come from; None for hidden_size.
        bias: Whether query, key and value have a bias.
        output_bias: Whether the output has; None for the same as `bias`.
        scale: Factor on q kᵀ; None for 1/sqrt(head_size). T5 has 1.
        dropout: Probability of dropping an attention weight in training.
        is_causal: A query attends to no key after itself, but for the layout's prefix.
        window: A query attends only to keys less than this many columns away, and to the layout's global tokens; None for all.
        query_norm: Applied to each query head, (..., N, H), before the positions (Qwen3); None for none.
        key_norm: The same for key heads.
        length_scale: Whether each map's products are divided by the square root of its input's width (CPM-1, CPM-2, CPM-Bee).

    Raises:
        ValueError: Heads that do not divide, or a number out of range.
    """

    tensor_region: ClassVar[bool] = True
    """The input is read by maps that a runtime may cut alone, and the output is that of one. A declaration only."""
    tensor_counts: ClassVar[tuple[str, ...]] = ("num_heads", "num_key_value_heads")
    """Attributes that a runtime divides when it cuts the heads over a tensor axis. A declaration only: nothing here acts on it."""
    tensor_shared: ClassVar[tuple[str, ...]] = ("query_norm", "key_norm")
    """Parts that then see only the heads that are here, so that gradients of their whole weights have to be summed."""
    tensor_grouped: ClassVar[tuple[str, ...]] = ("key", "value")
    """Maps of `num_key_value_heads` heads: where those cannot be divided, each process keeps them whole and picks those that its
    own `num_heads` share."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_size: int | None = None,
        context_size: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        window: int | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        length_scale: bool = False,
    ) -> None:
        super().__init__()
        num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        _check_heads(num_heads, num_key_value_heads, window, dropout)
        if head_size is None:
            if hidden_size % num_heads:
                raise ValueError(f"num_heads={num_heads} does not divide hidden_size={hidden_size}; change one or give head_size")
            head_size = hidden_size // num_heads
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_size = head_size
        self.scale = head_size**-0.5 if scale is None else scale
        self.dropout = dropout
        self.is_causal = is_causal
        self.window = window
        context_size = hidden_size if context_size is None else context_size
        scales = [width**-0.5 if length_scale else 1.0 for width in (hidden_size, context_size, num_heads * head_size)]
        self.query = Linear(hidden_size, num_heads * head_size, bias, scale=scales[0], tensor_split="column")
        self.key = Linear(context_size, num_key_value_heads * head_size, bias, scale=scales[1], tensor_split="column")
        self.value = Linear(context_size, num_key_value_heads * head_size, bias, scale=scales[1], tensor_split="column")
        output_bias = bias if output_bias is None else output_bias
        self.output = Linear(num_heads * head_size, hidden_size, output_bias, scale=scales[2], tensor_split="row")
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.heads_here: tuple[int, ...] | None = None
        """Which of all key/value heads are computed here; None for all. Set by a runtime that cuts the heads."""

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        context: Tensor | None = None,
        context_layout: Layout | None = None,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend from `hidden` to itself, or to a context.

        Args:
            hidden: (tokens, D) when the layout is packed, (B, T, D) when dense: where the queries come from.
            layout: Arrangement of `hidden`.
            context: (key tokens, C) or (B, S, C): where keys and values come from; None for `hidden`.
            context_layout: Arrangement of `context`; needed with it.
            position: Rotary phases, score bias, and a prefix, which is then the `lead` of the layout, or of the cache.
            cache: Dense only. Without a context the new keys and values are appended to it; with one they are stored in it once
                and `context` is not read again.

        Returns:
            The shape of `hidden`, float.

        Raises:
            ValueError: One of context and its layout is missing, only one side is packed, or the cache and the layout disagree.
        """
        attended = self.attend(hidden, layout, context=context, context_layout=context_layout, position=position, cache=cache)
        output: Tensor = self.output(attended)
        return output

    def attend(
        self,
        hidden: Tensor,
        layout: Layout,
        *,
        context: Tensor | None = None,
        context_layout: Layout | None = None,
        position: Position = _NOWHERE,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return what `forward` maps to its output: (..., N * H) float; arguments and errors as there."""
        _check_places(layout, context, context_layout, cache)
        key_layout = layout if context_layout is None else context_layout
        stored = None
        if cache is not None and context is not None and cache.length:
            query, stored = self.query(hidden), cache.stored()
        else:
            query, key, value = self.project(hidden, hidden if context is None else context)
            key = self._heads(key, self.num_key_value_heads, self.key_norm)
            if position.key_rotary is not None:
                key = apply_rotary(key, position.key_rotary)
            value = self._heads(value, self.num_key_value_heads, None)
        query = self._heads(query, self.num_heads, self.query_norm)
        if position.query_rotary is not None:
            query = apply_rotary(query, position.query_rotary)
        prefix = None if position.prefix is None else self._own_heads(position.prefix, query.dtype)
        if layout.is_packed:
            return self._attend_packed(query, key, value, layout, key_layout, position.bias, prefix)
        if stored is None:
            stored = key.transpose(1, 2), value.transpose(1, 2)
            if prefix is not None:
                stored = after_prefix(prefix, stored, cache)
            stored = stored if cache is None else cache.append(*stored)
        return self._attend_dense(query.transpose(1, 2), *stored, layout, key_layout, position.bias)

    def project(self, hidden: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before norms and positions.

        Args:
            hidden: (..., D) float: where the queries come from.
            source: (..., C) float: where keys and values come from; `hidden` itself in self-attention.

        Returns:
            (..., N * H), (..., K * H) and (..., K * H) float.
        """
        return self.query(hidden), self.key(source), self.value(source)

    def _heads(self, projected: Tensor, num_heads: int, norm: nn.Module | None) -> Tensor:
        heads: Tensor = projected.unflatten(-1, (num_heads, self.head_size))
        if norm is not None:
            heads = norm(heads)
        return heads

    def _own_heads(self, prefix: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return those heads of a prefix that are here: (P, K, H) each."""
        key, value = prefix
        if self.heads_here is not None:
            chosen = torch.tensor(self.heads_here, device=key.device)
            key, value = key.index_select(1, chosen), value.index_select(1, chosen)
        return key.to(dtype), value.to(dtype)

    def _attend_packed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        key_layout: Layout,
        bias: Tensor | tuple[Tensor, ...] | None,
        prefix: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Attend within each sequence: (tokens, N, H) and (key tokens, K, H) to (tokens, N * H).

        `split` and not slices: the backward of a slice fills and adds a zero tensor of the whole batch, which cost more than the
        attention itself.
        """
        lengths, key_lengths = layout.lengths, key_layout.lengths
        assert lengths is not None
        assert key_lengths is not None
        is_plain_causal = self.is_causal and self.window is None and layout is key_layout and layout.prefix is None and bias is None
        is_plain_causal = is_plain_causal and layout.context is None and not layout.lead
        blocks: tuple[WindowBlocks | None, ...] = (None,) * len(lengths)
        is_plain_window = self.window is not None and layout is key_layout and layout.prefix is None and bias is None
        if self.window is not None and is_plain_window and layout.context is None and not layout.lead:
            blocks = window_blocks(layout, window=self.window, is_causal=self.is_causal)
        masks = None
        if not is_plain_causal and not (blocks and all(blocks)):
            masks = attention_masks(layout, key_layout, is_causal=self.is_causal, window=self.window)
        pieces = []
        keys, values = key.split(key_lengths), value.split(key_lengths)
        if prefix is not None:
            keys, values = (
                tuple(torch.cat([lead, each]) for each in own) for lead, own in zip(prefix, (keys, values), strict=True)
            )
        parts = zip(query.split(lengths), keys, values, strict=True)
        for index, (q, k, v) in enumerate(parts):
            if not len(q):
                continue
            cut = blocks[index]
            if cut is not None:
                pieces.append(self._attend_window(q, k, v, cut))
                continue
            mask = masks[index] if isinstance(masks, tuple) else None
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
            attended = self._attend(q, k, v, mask, bias[index] if bias is not None else None, is_plain_causal)
            pieces.append(attended.squeeze(0).transpose(0, 1).flatten(1))
        return torch.cat(pieces) if pieces else query.flatten(1)

    def _attend_window(self, query: Tensor, key: Tensor, value: Tensor, cut: WindowBlocks) -> Tensor:
        """Attend within the window of one long sequence: (T, N, H) and (T, K, H) to (T, N * H)."""
        near = self._attend(cut.queries(query), cut.keys(key), cut.keys(value), cut.mask, None, False)
        attended = cut.joined(near, len(query))
        if len(cut.global_places):
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (query[cut.global_places], key, value))
            wide = self._attend(q, k, v, cut.global_mask, None, False).squeeze(0).transpose(0, 1)
            attended = attended.index_copy(0, cut.global_places, wide)
        return attended.flatten(1)

    def _attend_dense(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        key_layout: Layout,
        bias: Tensor | tuple[Tensor, ...] | None,
    ) -> Tensor:
        """Attend within each row: (B, N, T, H) and (B, K, S, H) to (B, T, N * H)."""
        is_whole = layout is key_layout and layout.mask is None and layout.prefix is None and layout.start == 0
        is_whole = is_whole and layout.context is None and not layout.lead
        is_plain_causal = self.is_causal and self.window is None and is_whole and bias is None
        mask = None if is_plain_causal else attention_masks(layout, key_layout, is_causal=self.is_causal, window=self.window)
        assert not isinstance(mask, tuple)
        assert not isinstance(bias, tuple)
        return self._attend(query, key, value, mask, bias, is_plain_causal).transpose(1, 2).flatten(2)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, is_causal: bool
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return dot_product_attention(
            query, key, value, mask=mask, bias=bias, scale=self.scale, dropout=dropout, is_causal=is_causal
        )

    def extra_repr(self) -> str:
        """What `print` shows of this layer, beside its maps."""
        parts = [f"heads={self.num_heads}"]
        parts += [f"key_value_heads={self.num_key_value_heads}"] if self.num_key_value_heads != self.num_heads else []
        parts += [f"head_size={self.head_size}"]
        parts += [f"scale={self.scale:.4g}"] if self.scale != self.head_size**-0.5 else []
        parts += ["causal"] if self.is_causal else []
        parts += [f"window={self.window}"] if self.window is not None else []
        parts += [f"dropout={self.dropout:g}"] if self.dropout else []
        return ", ".join(parts)


def _check_places(layout: Layout, context: Tensor | None, context_layout: Layout | None, cache: KeyValueCache | None) -> None:
    if (context is None) != (context_layout is None):
        raise ValueError("context and context_layout belong together; one of them is missing")
    if context_layout is not None and context_layout.is_packed != layout.is_packed:
        raise ValueError("one of hidden and context is packed and the other is dense; pack both or neither")
    if cache is None:
        return
    if layout.is_packed:
        raise ValueError("a cache needs a dense layout, of one row a sequence; found a packed one")
    held = cache.length - cache.lead
    if context is None and held != layout.start:
        raise ValueError(
            f"the layout starts at column {layout.start} and its cache holds {held} tokens; use Layout.dense(..., start={held})"
        )
