"""Who may attend to whom: boolean masks of pairs of tokens, True = may attend."""

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.layers.layout import Layout

__all__ = ["attention_masks"]


def _allowed(query_columns: Tensor, key_columns: Tensor, is_causal: bool, window: int | None) -> Tensor:
    """Return the (T, S) bool of pairs that the order of tokens allows."""
    ahead = query_columns.unsqueeze(-1) - key_columns
    allowed = ahead >= 0 if is_causal else torch.ones_like(ahead, dtype=torch.bool)
    if window is not None:
        allowed = allowed & (ahead.abs() < window)
    return allowed


def _with_context(allowed: Tensor, of_query: Tensor | None, of_key: Tensor | None) -> Tensor:
    """Let every query see the context's keys, and the context's queries nothing else: (..., T, S), (..., T) and (..., S) bool."""
    if of_query is None or of_key is None:
        return allowed
    return of_key.unsqueeze(-2) | (~of_query.unsqueeze(-1) & allowed)


def _with_lead(allowed: Tensor, positions: Tensor, lead: int, window: int) -> Tensor:
    """Hide those keys of the lead that are out of a window, whatever padding stands between: (..., T, S) and (..., T)."""
    near = positions.unsqueeze(-1) - torch.arange(lead, device=positions.device) < window
    own = allowed[..., lead:].expand(*near.shape[:-1], -1)
    return torch.cat([near, own], dim=-1)


def _seen(allowed: Tensor) -> Tensor:
    """Give a query that may see nothing every key: a softmax over nothing is NaN on some backends."""
    return allowed | ~allowed.any(-1, keepdim=True)


def _with_global(allowed: list[Tensor], query: Layout, key: Layout, is_causal: bool) -> list[Tensor]:
    """Let global tokens see all, and be seen by all, in the order that `is_causal` asks for."""
    assert query.lengths is not None
    assert key.lengths is not None
    assert query.is_global is not None
    assert key.is_global is not None
    columns = zip(query.columns.split(query.lengths), key.columns.split(key.lengths), strict=True)
    flags = zip(query.is_global.split(query.lengths), key.is_global.split(key.lengths), strict=True)
    ordered = [_allowed(q, k, is_causal, None) for q, k in columns]
    unbound = [own.unsqueeze(1) | other for own, other in flags]
    return [mask | (free & order) for mask, free, order in zip(allowed, unbound, ordered, strict=True)]


def attention_masks(
    query: Layout, key: Layout, *, is_causal: bool, window: int | None
) -> Tensor | tuple[Tensor | None, ...] | None:
    """Return who may attend to whom.

    Args:
        query: Layout of the queries.
        key: Layout of the keys, packed or dense as the queries are.
        is_causal: A query sees no key after its own column, except the keys' `prefix` and `context`.
        window: A query sees only keys less than `window` columns away, but for global tokens; None for all.

    Returns:
        None when every pair is allowed. Packed: a tuple with one (T, S) bool or None a sequence. Dense: (B or 1, 1, T, S) bool.
        A query that may see nothing (padding in a dense batch, a context out of its window) is given every key; its result means
        nothing, but is finite.
    """
    other = None if query is key else query  # a layout that remembered itself would keep its masks until the next collection
    return key.remember((other, is_causal, window), lambda: _make_masks(query, key, is_causal, window))  # type: ignore[return-value]  # untyped memo


def _sees_all(query: Layout, key: Layout, width: int, window: int | None) -> bool:
    """Return whether the queries are the last column alone, as in writing token by token, and no key is out of their window."""
    is_last = query is key and query.batch_shape[1] == 1 and key.context is None
    return is_last and (window is None or width <= window)


def _make_masks(query: Layout, key: Layout, is_causal: bool, window: int | None) -> Tensor | tuple[Tensor | None, ...] | None:
    ordered = is_causal or window is not None or key.context is not None
    if key.lengths is not None and query.lengths is not None:
        if not ordered:
            return None
        pairs = zip(query.columns.split(query.lengths), key.key_columns(), strict=True)
        masks = [_allowed(q, k, is_causal, window) for q, k in pairs]
        if key.lead and window is not None:
            places_of = query.positions.split(query.lengths)
            masks = [_with_lead(mask, own, key.lead, window) for mask, own in zip(masks, places_of, strict=True)]
        if key.prefix:
            places = torch.arange(-key.lead, max(key.lengths, default=0), device=key.columns.device)
            prefixes = zip(masks, key.prefix, strict=True)
            masks = [mask | (places[: mask.shape[1]] < prefix) for mask, prefix in prefixes]
        if window is not None and query.is_global is not None and key.is_global is not None:
            masks = _with_global(masks, query, key, is_causal)
        if query.context is not None and key.context is not None:
            contexts = zip(query.context.split(query.lengths), key.context.split(key.lengths), strict=True)
            masks = [_with_context(mask, *pair) for mask, pair in zip(masks, contexts, strict=True)]
        return tuple(_seen(mask) if mask.shape[-1] else None for mask in masks)
    width = key.lead + key.start + key.batch_shape[1]
    if key.mask is None and (not ordered or _sees_all(query, key, width, window)):
        return None
    key_columns = key.key_columns()[0]
    if ordered:
        allowed = _allowed(query.columns, key_columns, is_causal, window)[None, None]
        if key.lead and window is not None:
            allowed = _with_lead(allowed, query.positions.unsqueeze(1), key.lead, window)
    else:
        allowed = torch.ones(1, 1, 1, width, dtype=torch.bool, device=query.columns.device)
    if ordered and key.prefix:
        place = key_columns.unsqueeze(0) if key.mask is None else key.mask.cumsum(1) - 1
        is_first = place < torch.tensor(key.prefix, device=place.device).unsqueeze(1)
        allowed = allowed | is_first[:, None, None, :]
    if key.context is not None:
        of_query = key.context[:, key.start :] if query is key else query.context
        allowed = _with_context(allowed, None if of_query is None else of_query.unsqueeze(1), key.context.unsqueeze(1))
    present = None if key.mask is None else F.pad(key.mask, (key.lead, 0), value=True) if key.lead else key.mask
    return _seen(allowed if present is None else allowed & present[:, None, None, :])
