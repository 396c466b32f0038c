"""What the backward of each part of a model computes, as its frozen values leave it.

A map's backward is two products of the forward's size: the gradient of its weight, where that is trained, and that of its input,
where something before it is trained. A change of low rank adds products of its own. Nothing runs backward below the first value
that is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from modelzoo.adapters import LowRankMap
from modelzoo.layers import FeedForward, LayerNorm, MixtureOfExperts, ParallelBlock, RMSNorm
from modelzoo.runtime.units import find_units

__all__ = ["Backward", "GradientPath", "scores_backward"]


@dataclass(frozen=True, slots=True)
class Backward:
    """Of a part."""

    products: float = 2.0
    """Products of its maps, as a multiple of the forward's."""
    attends: bool = True
    """Whether the scores of an attention have a gradient."""
    is_reached: bool = True
    """Whether its elementwise work runs backward."""
    low_rank: tuple[int, int] = (0, 0)
    """Values of changes of low rank that a token is multiplied with, in the forward and in the backward."""


class GradientPath:
    """Walks through a model in forward order and tells of each part what its backward computes.

    Args:
        model: May be on meta.
    """

    def __init__(self, model: nn.Module) -> None:
        stacks = [stack for stack in (getattr(model, "encoder", None), getattr(model, "decoder", None)) if stack is not None]
        later = {id(part) for stack in stacks for part in (getattr(stack, "norm", None), getattr(stack, "adapter", None)) if part}
        later |= {id(part) for part in (getattr(model, "head", None), getattr(model, "pooler", None)) if part is not None}
        after = {id(each) for module in model.modules() if id(module) in later for each in module.parameters()}
        inside = {id(each) for block in find_units(model) for each in block.parameters()}
        outside = [each for each in model.parameters() if id(each) not in inside and id(each) not in after]
        self._is_reached = any(each.requires_grad for each in outside)
        self._norms = {id(part): norm for block in model.modules() for part, norm in _before(block)}
        prefixed = [stack for stack in stacks if getattr(stack, "lead", 0)]
        self._prefixed = {id(each) for stack in prefixed for block in stack.layers for each in block.modules()}

    def after(self, module: Any, *, is_cross: bool = False) -> Backward:
        """Return the backward of the next part, and go on behind it.

        Args:
            module: An attention, a network, a mixture or a norm.
            is_cross: Whether an attention has its keys from elsewhere.
        """
        if isinstance(module, LayerNorm | RMSNorm):
            self._is_reached |= any(each.requires_grad for each in module.parameters())
            return Backward(0.0, False, self._is_reached)
        norm = self._norms.get(id(module))
        self._is_reached |= norm is not None and any(each.requires_grad for each in norm.parameters())
        if isinstance(module, MixtureOfExperts):
            experts: Any = module.experts
            return self._through([[(experts.gate, None), (experts.up, None)], [(experts.down, None)]])
        if isinstance(module, FeedForward):
            return self._through([_maps(module, ("up", "gate")), _maps(module, ("down",))])
        stages = [_maps(module, ("query", "key", "value")), _maps(module, ("output",))]
        return self._through(stages, has_prefix=id(module) in self._prefixed and not is_cross)

    def _through(self, stages: Sequence[Sequence[tuple[Tensor, Any]]], *, has_prefix: bool = False) -> Backward:
        total = backward = forward_rank = backward_rank = 0
        attends = self._is_reached
        for number, stage in enumerate(stages):
            is_reached = self._is_reached
            for weight, owner in stage:
                total += weight.numel()
                backward += weight.numel() * (weight.requires_grad + is_reached)
                change = getattr(owner, "adapter", None)
                if isinstance(change, LowRankMap):
                    forward_rank += change.a.numel() + change.b.numel()
                    backward_rank += 2 * change.b.numel() + change.a.numel() * (1 + is_reached)
                own = [weight] if owner is None else list(owner.parameters())
                self._is_reached |= any(each.requires_grad for each in own)
            if number == 0:
                self._is_reached |= has_prefix
                attends = self._is_reached
        return Backward(backward / max(total, 1), attends, self._is_reached, (forward_rank, backward_rank))


def _before(block: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Return the parts of a block with the norms that stand before them."""
    if getattr(block, "norm_position", None) == "pre":
        return [(block.sublayer, block.norm)]
    if isinstance(block, ParallelBlock):
        return [(block.attention, block.norm), (block.feed_forward, block.feed_forward_norm or block.norm)]
    return []


def _maps(module: Any, names: Sequence[str]) -> list[tuple[Tensor, Any]]:
    found: list[Any] = [getattr(module, name, None) for name in names]
    return [(each.weight, each) for each in found if isinstance(getattr(each, "weight", None), Tensor)]


def scores_backward(model: nn.Module) -> tuple[bool, bool]:
    """Return whether the scores over the vocabulary have gradients of the table, and of the hidden states.

    Args:
        model: A language model; may be on meta.
    """
    head = getattr(model, "head", None)
    words = model.config.vocab_size  # type: ignore[union-attr]  # a model of the zoo
    own = [] if head is None else [each for each in head.parameters() if each.dim() == 2 and len(each) == words]
    tables = own or [each.weight for name, each in model.named_modules() if name.rpartition(".")[2] == "token"]
    in_head = set() if head is None else {id(each) for each in head.parameters()}
    before = any(each.requires_grad for each in model.parameters() if id(each) not in in_head)
    return any(bool(table.requires_grad) for table in tables), before
