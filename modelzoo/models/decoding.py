"""What a language model remembers between two tokens that it writes."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from modelzoo.layers import Attention, Decoder, KeyValueCache

__all__ = ["Decodable", "DecodingState", "new_caches"]


@dataclass(slots=True)
class DecodingState:
    """Caches and masks of the sequences that are being written."""

    mask: Tensor
    """(B, S) bool: which of the columns so far hold a token; one column longer with every token."""
    caches: list[KeyValueCache]
    """Keys and values of the self-attention, one a block."""
    context: Tensor | None = None
    """(B, C, D) float: what an encoder made of the input; None without an encoder."""
    context_mask: Tensor | None = None
    """(B, C) bool."""
    context_caches: list[KeyValueCache] = field(default_factory=list)
    """Keys and values of the context, one a block, computed once."""
    has_padding: bool = True
    """False when it is known that every column of the mask holds a token."""

    def reorder(self, rows: Tensor) -> None:
        """Replace sequence i by sequence `rows[i]`, as beam search does.

        Args:
            rows: (B,) int64. Rows keep their own context: a beam stays within the rows of its input.
        """
        self.mask = self.mask[rows]
        for cache in self.caches:
            cache.reorder(rows)


class Decodable(Protocol):
    """A model that writes: what generation needs of it."""

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> tuple[Tensor, DecodingState]:
        """Read the input and return (B, V) logits of the first new token, and the state."""

    def decode(self, ids: Tensor, state: DecodingState) -> Tensor:
        """Append (B,) tokens and return (B, V) logits of the next."""


def new_caches(decoder: Decoder, rows: int, max_length: int, like: Tensor, *, of_context: bool = False) -> list[KeyValueCache]:
    """Return an empty cache for each attention layer of a stack.

    Args:
        decoder: The stack.
        rows: Sequences, B.
        max_length: Tokens that each can hold, beside a prefix of the stack.
        like: A parameter whose dtype and device the caches take.
        of_context: Whether they are for the attention to a context.
    """
    caches, lead = [], 0 if of_context else decoder.lead
    for block in decoder.layers:
        attentions = [module for module in block.modules() if isinstance(module, Attention)]
        own = attentions[-1 if of_context else 0]
        dtype = torch.get_autocast_dtype(like.device.type) if torch.is_autocast_enabled(like.device.type) else like.dtype
        heads, size = own.num_key_value_heads, own.head_size
        caches.append(KeyValueCache(rows, heads, lead + max_length, size, dtype=dtype, device=like.device, lead=lead))
    return caches
