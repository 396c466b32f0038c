"""torch's fused AdamW on one tensor, or on a piece of one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.adamw import adamw

__all__ = ["fused_adamw"]


def fused_adamw(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: Tensor, options: Mapping[str, Any]) -> None:
    """Update values and moments in place.

    Args:
        value: float32.
        gradient: Of its shape.
        first: First moment.
        second: Second moment.
        step: () float32, steps that were taken before; on the device of the values, counted up.
        options: lr, betas, eps and weight_decay.
    """
    adamw(
        [value],
        [gradient],
        [first],
        [second],
        [],
        [step],
        fused=True,
        amsgrad=False,
        beta1=options["betas"][0],
        beta2=options["betas"][1],
        lr=options["lr"],
        weight_decay=options["weight_decay"],
        eps=options["eps"],
        maximize=False,
    )
