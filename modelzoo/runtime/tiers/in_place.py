"""One process: a plain model whose blocks compute on the slots themselves, one block at a time, without a copy.

A parameter that lives in a lower tier has values while its block is at work: its `data` is then a part of the block's slot, and NaN
that takes no memory otherwise. The block at work is the one that a forward or a backward asked for last. What autograd saves of a
slot for the backward is its place in the block, so that another slot may hold the block by then.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from modelzoo.runtime.tiers.ring import Ring
from modelzoo.runtime.tiers.slots import Slot
from modelzoo.runtime.tiers.unit import Unit

__all__ = ["InPlace", "nothing_like"]


def nothing_like(tensor: Tensor) -> Tensor:
    """Return NaN of a tensor's shape, dtype and device, without memory: reading it shows at once, and copying to it is an error."""
    return torch.full((), float("nan"), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Saved:
    """A part of a block's slot, as autograd saves it."""

    unit: Unit
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class InPlace:
    """The units of one model that are at work.

    Args:
        ring: Through which they come.
        note: Called when one has come.
    """

    def __init__(self, ring: Ring, note: Callable[[], object]) -> None:
        self._ring, self._note = ring, note
        self._block: tuple[Unit, Slot] | None = None
        self._rest: tuple[Unit, Slot] | None = None

    def attach(self, unit: Unit, *, is_block: bool) -> None:
        """Let a streamed unit come when it is used; what is in no block stays until `let_go`.

        Args:
            unit: Its parameters lose their memory.
            is_block: Whether it is one of many that come one after the other.
        """
        self._empty(unit)
        module = unit.module
        module.forward = (self._forward if is_block else self._forward_rest)(unit, module.forward)
        if not is_block:
            # methods beside `forward` (an encoder's part in generation) call the modules that hold them
            own = {id(place.parameter) for place in unit.places}
            for part in module.modules():
                if part is not module and any(id(each) in own for each in part.parameters(recurse=False)):
                    part.register_forward_pre_hook(lambda *_: self._bring_rest(unit))

    def let_go(self) -> None:
        """Take the values of all units away again: theirs may change, or their slots serve others."""
        for at_work in (self._block, self._rest):
            if at_work is not None:
                self._empty(at_work[0])
                self._ring.slots.release(at_work[1])
        self._block = self._rest = None

    # -- what the model sees ---------------------------------------------------------------------------------------------------

    def _forward(self, unit: Unit, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._bring(unit)
            is_recorded = torch.is_grad_enabled()
            with torch.autograd.graph.saved_tensors_hooks(partial(self._save, unit), self._saved) if is_recorded else nullcontext():
                output = forward(*args, **kwargs)
            ends = [tensor for tensor in _tensors(output) if tensor.requires_grad] if is_recorded else []
            if ends:
                torch.autograd.graph.register_multi_grad_hook(ends, partial(self._bring_again, unit), mode="any")
            return output

        return run

    def _forward_rest(self, unit: Unit, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._bring_rest(unit)
            return forward(*args, **kwargs)

        return run

    def _bring(self, unit: Unit) -> Slot:
        """Let a block be at work instead of the one before."""
        if self._block is not None:
            before, slot = self._block
            self._block = None
            self._ring.slots.release(slot)
            if before is not unit:
                self._empty(before)
        slot = self._fetch(unit)
        self._block = unit, slot
        return slot

    def _bring_again(self, unit: Unit, gradient: Tensor) -> None:
        """Begin a block's backward: a gradient of its output is there."""
        self._bring(unit)

    def _bring_rest(self, unit: Unit) -> None:
        if self._rest is None:
            self._rest = unit, self._fetch(unit)
        else:
            self._ring.wait_for(self._rest[1])  # it may be under its update

    def _fetch(self, unit: Unit) -> Slot:
        """Let a unit's parameters have their values.

        Raises:
            SaveError: They could not be read, or an update before could not be carried out.
        """
        slot = self._ring.fetch(unit)
        slot.users += 1
        for place in unit.places:
            place.parameter.data = slot.values[place.start : place.start + place.numel].view(place.padded)
        self._note()
        return slot

    def _empty(self, unit: Unit) -> None:
        for place in unit.places:
            place.parameter.data = nothing_like(place.parameter)

    # -- what autograd saves ---------------------------------------------------------------------------------------------------

    def _save(self, unit: Unit, tensor: Tensor) -> "Tensor | _Saved":
        if self._block is None or self._block[0] is not unit:
            return tensor.detach()
        values = self._block[1].values
        if tensor.untyped_storage().data_ptr() != values.untyped_storage().data_ptr():
            return tensor.detach()
        return _Saved(unit, int(tensor.storage_offset()), tensor.shape, tensor.stride())

    def _saved(self, saved: "Tensor | _Saved") -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        at_work = self._block
        slot = at_work[1] if at_work is not None and at_work[0] is saved.unit else self._bring(saved.unit)
        return slot.values.as_strided(saved.shape, saved.stride, saved.offset)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Give the tensors in what a module returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))
