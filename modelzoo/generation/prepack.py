"""Weights in the CPU's own layout while a model writes.

Writing one token reads every weight once, so its time is that of reading memory; prepacked weights are read about twice as fast
(see `row_product` for one row and `onednn` for more). Maps of the same input are multiplied as one, and RMS norms take fewer
operations. The layers' functions are replaced on the instances and put back afterwards: layers and models know nothing of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

from torch import Tensor, nn

from modelzoo.generation.packed_map import PackedMap, Packing, can_be_packed, is_available, is_plain
from modelzoo.generation.row_norm import row_norm
from modelzoo.layers import Attention, Embedding, FeedForward, Linear, RMSNorm

__all__ = ["Packing", "is_worth_it", "prepacked"]

_WORTH_TOKENS = 16  # packing costs about as much time as it saves on ten tokens; a single row, for which less is copied, on two
_WORTH_TOKENS_ONE_ROW = 4
_MOST_ROWS = 64  # with more, a product is bound by arithmetic, where prepacking gains less than a tenth

_FUNCTIONS: Mapping[type[nn.Module], str] = MappingProxyType(
    {Linear: "forward", Embedding: "logits", Attention: "project", FeedForward: "project", RMSNorm: "forward"}
)


def is_worth_it(num_tokens: int, num_rows: int) -> bool:
    """Return whether writing so many tokens to so many rows pays for packing the weights."""
    return num_tokens >= (_WORTH_TOKENS_ONE_ROW if num_rows == 1 else _WORTH_TOKENS) and num_rows <= _MOST_ROWS


@contextmanager
def prepacked(model: nn.Module, num_rows: int = 1) -> Iterator[Packing]:
    """Run a model's linear maps and tied heads on prepacked weights inside a `with`; outside it everything is as before.

    Results differ from the plain ones by rounding, and tokens are the same. `generate` does this by itself; around many calls it
    saves packing the weights each time. A weight is packed when it first meets at most `num_rows` rows. With more than one row
    its copy takes as much memory as it does, so a model takes up to twice its memory. With one row only heads and maps that are
    multiplied as one (query, key and value; the gated maps) or widen their input twofold are copied, two thirds of a model; the
    others are read where they are. Where packing does not apply (an accelerator, half precision, sharded or small weights, a
    forward with gradients or autocast, a weight that was changed inside, or more rows, as when a prompt is read) the plain
    computation runs.

    Args:
        model: Any model built from `modelzoo.layers`.
        num_rows: Sequences that are written at once, beams counted, at least 1; the layout is chosen for them.

    Yields:
        The memory that the copies take; it grows until each weight was used.
    """
    packing = Packing()
    replaced: list[tuple[nn.Module, str]] = []
    try:
        for module in model.modules() if is_available(num_rows) else ():
            name = _FUNCTIONS.get(type(module))
            if name is None or name in vars(module):  # not ours to replace, or replaced already
                continue
            function = _on_packed_weights(module, getattr(module, name), num_rows, packing)
            if function is not None:
                setattr(module, name, function)
                replaced.append((module, name))
        yield packing
    finally:
        for module, name in replaced:
            delattr(module, name)


def _on_packed_weights(module: nn.Module, plain: Callable[..., Any], num_rows: int, packing: Packing) -> Callable[..., Any] | None:
    """Return `plain` on packed weights, with the same arguments and results; None where it stays as it is."""
    if isinstance(module, Attention):
        maps = [module.query, module.key, module.value]
        return _attention_maps(maps, plain, num_rows, packing) if _belong_together(maps) else None
    if isinstance(module, FeedForward):
        maps = [] if module.gate is None else [module.gate, module.up]
        return _feed_forward_maps(maps, plain, num_rows, packing) if _belong_together(maps) else None
    if isinstance(module, RMSNorm):
        return row_norm(module, plain) if is_plain(module.weight) else None
    if not can_be_packed(module):
        return None
    layer = cast(Linear | Embedding, module)
    packed = PackedMap([layer], num_rows, packing)

    def mapped(hidden: Tensor) -> Tensor:
        if not packed.fits(hidden):
            return cast(Tensor, plain(hidden))
        return _changed(layer, hidden, packed(hidden)) if isinstance(layer, Linear) else packed(hidden)

    return mapped


def _attention_maps(
    maps: Sequence[Linear], plain: Callable[[Tensor, Tensor], tuple[Tensor, ...]], num_rows: int, packing: Packing
) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    packed = PackedMap(maps, num_rows, packing)
    sizes = [each.out_features for each in maps]

    def project(hidden: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        if source is not hidden or not packed.fits(hidden):
            return plain(hidden, source)
        mapped = packed(hidden).split(sizes, dim=-1)
        return tuple(_changed(each, hidden, part) for each, part in zip(maps, mapped, strict=True))

    return project


def _feed_forward_maps(
    maps: Sequence[Linear], plain: Callable[[Tensor], tuple[Tensor | None, Tensor]], num_rows: int, packing: Packing
) -> Callable[[Tensor], tuple[Tensor | None, Tensor]]:
    packed = PackedMap(maps, num_rows, packing)

    def project(hidden: Tensor) -> tuple[Tensor | None, Tensor]:
        if not packed.fits(hidden):
            return plain(hidden)
        gate, up = packed(hidden).chunk(2, dim=-1)
        return _changed(maps[0], hidden, gate), _changed(maps[1], hidden, up)

    return project


def _changed(linear: Linear, hidden: Tensor, mapped: Tensor) -> Tensor:
    """Return what a map's adapter, if it has one, makes of its output."""
    return mapped if linear.adapter is None else linear.adapter(hidden, mapped, linear)


def _belong_together(maps: Sequence[nn.Module]) -> bool:
    """Return whether maps are plain ones of one input, alike, that nobody watches."""
    if not maps or not all(type(each) is Linear and can_be_packed(each) for each in maps):
        return False
    linears = cast(Sequence[Linear], maps)
    kinds = {(each.in_features, each.scale, each.bias is None) for each in linears}
    is_watched = any(each._forward_hooks or each._forward_pre_hooks or "forward" in vars(each) for each in linears)
    return len(kinds) == 1 and not is_watched
