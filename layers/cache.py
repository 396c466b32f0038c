"""Keys and values of earlier tokens, for decoding token by token."""

import torch
from torch import Tensor

__all__ = ["KeyValueCache", "after_prefix"]


class KeyValueCache:
    """The keys and values of one attention layer, of fixed size and written in place.

    A self-attention layer appends to it. A cross-attention layer fills it once, with the whole context, and reads it afterwards.
    It does not evict: past `max_length` tokens it raises.

    Args:
        batch_size: Sequences, B.
        num_key_value_heads: K.
        max_length: Tokens it can hold, S.
        head_size: H.
        dtype: Of the stored keys and values.
        device: Where they live.
        lead: Places at the beginning that `begin` fills; they are there from the start, within `max_length`.
    """

    def __init__(
        self,
        batch_size: int,
        num_key_value_heads: int,
        max_length: int,
        head_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        lead: int = 0,
    ) -> None:
        shape = (batch_size, num_key_value_heads, max_length, head_size)
        self.max_length = max_length
        self.length = self.lead = lead
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def begin(self, key: Tensor, value: Tensor) -> None:
        """Write the keys and values of the lead, the same for every sequence.

        Args:
            key: (K, lead, H) float.
            value: (K, lead, H) float.
        """
        self._keys[:, :, : self.lead] = key
        self._values[:, :, : self.lead] = value

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest tokens and return all that is stored.

        Args:
            key: (B, K, T, H) float.
            value: (B, K, T, H) float.

        Returns:
            Keys and values, each a (B, K, length, H) view.

        Raises:
            ValueError: The cache would hold more than `max_length` tokens, or the shape is not the cache's.
        """
        rows, heads, _, size = self._keys.shape
        count = key.shape[2]
        for found in (key.shape, value.shape):
            if found != (rows, heads, count, size):
                raise ValueError(f"expected keys and values of shape ({rows}, {heads}, tokens, {size}), found {tuple(found)}")
        start, self.length = self.length, self.length + count
        if self.length > self.max_length:
            self.length = start
            raise ValueError(f"a cache of {self.max_length} tokens holds {start} and cannot take {count} more")
        self._keys.narrow(2, start, count).copy_(key)  # an indexed assignment takes three times as long for one token
        self._values.narrow(2, start, count).copy_(value)
        return self.stored()

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values written so far, each a (B, K, length, H) view."""
        return self._keys.narrow(2, 0, self.length), self._values.narrow(2, 0, self.length)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i of the batch by row `rows[i]`, as beam search does.

        Args:
            rows: (B,) int64.
        """
        used = slice(0, self.length)
        self._keys[:, :, used] = self._keys[rows][:, :, used]
        self._values[:, :, used] = self._values[rows][:, :, used]


def after_prefix(prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
    """Return keys and values behind a prefix; with a cache they stay as they are, and the prefix is written to its lead once.

    Args:
        prefix: (P, K, H) float each.
        own: (B, K, T, H) float each.
        cache: That they will be appended to.
    """
    key, value = (part.transpose(0, 1) for part in prefix)
    if cache is None:
        rows = len(own[0])
        return torch.cat([key.expand(rows, -1, -1, -1), own[0]], 2), torch.cat([value.expand(rows, -1, -1, -1), own[1]], 2)
    if cache.length == cache.lead:
        cache.begin(key, value)
    return own
