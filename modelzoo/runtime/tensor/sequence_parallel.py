"""Between the sublayers each rank of a tensor axis keeps a slice of the tokens (Korthikanti et al., 2022, section 4.2.2).

Norms, residual sums and dropout treat each token by itself, so every rank does its share of them and keeps its share of their
activations. A sublayer whose maps are cut needs all tokens: they are gathered before it, and its outputs are added up and cut into
slices in one exchange, which together move as many bytes as the sum that they replace.

Blocks say what they are: `tensor_sliced` on a block whose parts but the sublayers treat each token by itself, `tensor_sublayers`
names the sublayers, and `tensor_region` marks a sublayer that reads its input through cut maps alone and ends in one. The last
block of a stack, which may be asked for selected tokens only, works on all tokens, and so does every block without a gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo.runtime.tensor.collectives import TensorAxis
from modelzoo.runtime.tensor.local_view import Shared
from modelzoo.runtime.tensor.token_slices import add_and_cut, cut, exchange, gather

__all__ = ["slice_tokens"]


def slice_tokens(model: nn.Module, blocks: Sequence[nn.Module], axis: TensorAxis) -> None:
    """Let the blocks of each stack keep slices of the tokens between their sublayers, in place.

    Args:
        model: After its layers were cut.
        blocks: Its units.
        axis: The tensor axis.
    """
    units = {id(block) for block in blocks}
    for stack in model.modules():
        members = [child for child in stack if id(child) in units] if isinstance(stack, nn.ModuleList) else []
        if len(members) > 1 and all(getattr(block, "tensor_sliced", False) for block in members):
            for index, block in enumerate(members[:-1]):
                _slice_block(block, axis, is_first=index == 0, is_last=index == len(members) - 2)


def _slice_block(block: Any, axis: TensorAxis, *, is_first: bool, is_last: bool) -> None:
    owners = [module for module in block.modules() if hasattr(module, "tensor_sublayers")]
    sublayers: list[Any] = [getattr(owner, name) for owner in owners for name in owner.tensor_sublayers]
    inside = {id(part) for sublayer in sublayers for part in sublayer.modules()}
    for part in block.modules():
        if part._parameters and id(part) not in inside:
            part.forward = _OnSlices(part, axis)
    for sublayer in sublayers:
        sublayer.forward = _OnAll(sublayer, axis)
    block.forward = _Block(block.forward, axis, is_first=is_first, is_last=is_last)


class _Block:
    """A block's forward from slices to slices."""

    def __init__(self, forward: Any, axis: TensorAxis, *, is_first: bool, is_last: bool) -> None:
        self._forward, self._axis, self._is_first, self._is_last = forward, axis, is_first, is_last

    def __call__(self, hidden: Tensor, layout: Any, *args: Any, **kwargs: Any) -> Tensor:
        axis = self._axis
        if not torch.is_grad_enabled() or kwargs.get("cache") is not None:
            plain: Tensor = self._forward(hidden, layout, *args, **kwargs)
            return plain
        shape: tuple[int, ...] = layout.token_shape
        if self._is_first:
            hidden = exchange(hidden, axis, shape, forward=cut, backward=gather)
        with axis.sliced(shape):
            hidden = self._forward(hidden, layout, *args, **kwargs)
        return exchange(hidden, axis, shape, forward=gather, backward=cut) if self._is_last else hidden


class _OnAll:
    """A sublayer's forward from a slice of the tokens to a slice of its outputs."""

    def __init__(self, sublayer: Any, axis: TensorAxis) -> None:
        self._forward, self._axis = sublayer.forward, axis
        self._is_region = bool(getattr(sublayer, "tensor_region", False))

    def __call__(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        axis, shape = self._axis, self._axis.token_shape
        if shape is None:
            output: Tensor = self._forward(hidden, *args, **kwargs)
        elif self._is_region:
            everything = exchange(hidden, axis, shape, forward=gather, backward=add_and_cut)
            with axis.region(everything):
                output = self._forward(everything, *args, **kwargs)
        else:
            # what it does with its input is its own business: the input's gradient is whole on every rank, and so is the output
            everything = exchange(hidden, axis, shape, forward=gather, backward=cut)
            with axis.sliced(None):
                output = self._forward(everything, *args, **kwargs)
            output = exchange(output, axis, shape, forward=cut, backward=gather)
        return output


class _OnSlices(Shared):
    """A part between sublayers, on whole weights: each rank gives it other tokens, so that gradients of its weights are summed."""

    def __init__(self, part: Any, axis: TensorAxis) -> None:
        super().__init__(part, axis)
        self._forward = part.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs) if self._axis.token_shape is None else super().__call__(*args, **kwargs)
