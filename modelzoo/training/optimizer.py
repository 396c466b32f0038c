"""AdamW with weight decay on weight matrices only."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from modelzoo.errors import ConfigError
from modelzoo.runtime.adamw_8bit import AdamW8bit
from modelzoo.runtime.tiers import TieredAdamW, tiers_of

__all__ = ["build_optimizer", "decay_groups", "set_lr"]


def decay_groups(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of the trained parameters with weight decay, and of those without: biases and norms.

    Norms and biases are vectors, so a parameter of fewer than two dimensions, or called bias, is not decayed. Names are those under
    which the parameter stands first; a tied one stands once.
    """
    decayed: list[str] = []
    kept: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (kept if parameter.ndim < 2 or name.endswith("bias") else decayed).append(name)
    return decayed, kept


def build_optimizer(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.01,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    moments: str = "float32",
) -> Optimizer:
    """Return AdamW over the trained parameters of a plain or sharded model, which are float32.

    Args:
        model: After sharding.
        lr: Rate of the first step; the loop sets it before each step.
        weight_decay: Decoupled decay of the weight matrices.
        betas: Decay rates of the two moments.
        eps: Added to the root of the second moment.
        moments: "float32", or "8bit" for a quarter of their memory and numbers that are near AdamW's.

    Raises:
        ConfigError: No parameter is trained, or one is not float32; or moments in 8 bits meet tiers or a tensor axis.
    """
    parameters = dict(model.named_parameters())
    decayed, kept = decay_groups(model)
    if not decayed and not kept:
        raise ConfigError(f"{type(model).__name__}: all {len(parameters)} parameters are frozen; expected one to train at least")
    for name in [*decayed, *kept]:
        if parameters[name].dtype != torch.float32:
            raise ConfigError(f"{name}: trained parameters are stored in float32, found {parameters[name].dtype}")
    groups = [
        {"params": [parameters[name] for name in names], "weight_decay": decay}
        for names, decay in ((decayed, weight_decay), (kept, 0.0))
        if names
    ]
    tiers = tiers_of(model)
    if moments == "8bit":
        if tiers is not None:
            raise ConfigError("optimizer.moments=8bit works without tiers; leave memory out, or use optimizer.moments=float32")
        return AdamW8bit(groups, lr=lr, betas=(betas[0], betas[1]), eps=eps)
    if tiers is not None:
        return TieredAdamW(groups, tiers, lr=lr, betas=(betas[0], betas[1]), eps=eps)
    return AdamW(groups, lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr
