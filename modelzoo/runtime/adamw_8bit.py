"""AdamW whose moments are kept in eight bits: a quarter of their memory, for numbers that are close to AdamW's and not equal.

The arithmetic is torch's own, in float32 on moments that are unpacked piece by piece. Unlike torchao's AdamW8bit, whose codes and
scales these are, nothing is compiled, the state is plain tensors, and it can be saved on one number of ranks and read on another.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelzoo.errors import ConfigError
from modelzoo.runtime.eight_bits import BLOCK, EightBits, has_eight_bits
from modelzoo.runtime.fused_adamw import fused_adamw
from modelzoo.sharded import held, is_sharded

__all__ = ["AdamW8bit"]

PIECE = 2**18
"""Values that are unpacked at a time; they and both moments stay in the cache."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW8bit(Optimizer):
    """AdamW with moments in eight bits; vectors and small matrices keep them in float32. Use it as torch's.

    Parameters may be sharded by rows, not over a tensor axis: a block of a row would be cut.

    Args:
        groups: Parameter groups, as torch's AdamW takes them.
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.

    Raises:
        ConfigError: A parameter is cut along something else than its rows.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._packing: dict[torch.device, tuple[EightBits, EightBits]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if is_sharded(parameter) and any(each.is_shard() and not each.is_shard(0) for each in parameter.placements):
                    raise ConfigError(
                        f"moments in 8 bits: a parameter of {list(parameter.shape)} is cut within its rows; use float32"
                    )

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of each tensor of a parameter's state, by its kind."""
        shape = tuple(parameter.shape)
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"step": ((), torch.float32)}
        for moment in MOMENTS:
            if has_eight_bits(shape):
                found[f"{moment}_codes"] = (shape, torch.uint8)
                found[f"{moment}_scales"] = ((shape[0], -(-math.prod(shape[1:]) // BLOCK)), torch.float32)
            else:
                found[moment] = (shape, torch.float32)
        return found

    def moment(self, parameter: Tensor, kind: str) -> Tensor:
        """Return a tensor of zeros for one kind of a parameter's state, sharded as the parameter is.

        Args:
            parameter: Plain or sharded.
            kind: One of `state_shapes`.
        """
        shape, dtype = self.state_shapes(parameter)[kind]
        if shape == tuple(parameter.shape):
            return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        own = held(parameter)
        local = torch.zeros((len(own), shape[1]), dtype=dtype, device=own.device)
        if not is_sharded(parameter):
            return local
        from torch.distributed.tensor import DTensor

        placed = DTensor.from_local(
            local, parameter.device_mesh, parameter.placements, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1)
        )
        return placed

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a closure's loss
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model in the middle of an update"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, grad: Tensor, options: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            kinds = [kind for kind in self.state_shapes(parameter) if kind != "step"]
            state |= {"step": torch.tensor(0.0), **{kind: self.moment(parameter, kind) for kind in kinds}}
        value, gradient = held(parameter), held(grad)
        own = {kind: held(tensor) for kind, tensor in state.items()}
        if "exp_avg" in own:
            step = state["step"].to(value.device, copy=True)
            fused_adamw(value, gradient, own["exp_avg"], own["exp_avg_sq"], step, options)
        elif value.numel():
            rows = [tensor.reshape(len(value), -1) for tensor in (value, gradient)]
            self._update_rows(rows[0], rows[1], own, options)
        state["step"] += 1

    def _update_rows(self, value: Tensor, gradient: Tensor, own: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
        """Update (rows, width) values, some rows at a time."""
        if value.device not in self._packing:
            self._packing[value.device] = (EightBits(True, value.device), EightBits(False, value.device))
        packing = dict(zip(MOMENTS, self._packing[value.device], strict=True))
        codes = {kind: own[f"{kind}_codes"].view(value.shape) for kind in MOMENTS}
        scales = {kind: own[f"{kind}_scales"] for kind in MOMENTS}
        count = max(PIECE // value.shape[1], 1)
        for low in range(0, len(value), count):
            piece = slice(low, low + count)
            first, second = (packing[kind].unpack(codes[kind][piece], scales[kind][piece]) for kind in MOMENTS)
            # each piece counts the step up, so each has its own
            fused_adamw(value[piece], gradient[piece], first, second, own["step"].to(value.device, copy=True), options)
            for kind, moment in zip(MOMENTS, (first, second), strict=True):
                codes[kind][piece], scales[kind][piece] = packing[kind].pack(moment)
