"""Trained keys and values before those of every self-attention (prefix tuning, Li and Liang, 2021).

One module a stack holds them for all of its blocks: a stack with an `adapter` hands each block its part, layouts know how many
stand there, and caches begin with them. Tokens count their positions behind them, and get no more vectors, as in PEFT.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.config.adapter import AdapterConfig
from modelzoo.errors import ConfigError
from modelzoo.layers import Attention, Decoder, Encoder
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built

__all__ = ["Prefix", "find_stack", "new_prefix", "prefix_of", "projected", "require_prefix", "sizes_of"]

_DECODERS = ("gpt2", "gptj", "llama", "mistral", "mixtral", "opt", "qwen2", "qwen2_moe", "qwen3")
_RUN_IN_PEFT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_DECODERS, ("base", "causal_lm")),
    **dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta"), ("base",)),
    **dict.fromkeys(("t5", "mt5"), ("seq2seq_lm",)),
}
"""Family -> tasks for which peft 0.21 runs a prefix with transformers 5.24; the others have no place for past keys and values."""


_NAMES = ("vectors", "inner", "inner_bias", "outer", "outer_bias")


class Prefix(nn.Module):
    """P keys and values for each block of a stack.

    Args:
        num_tokens: P, at least 1.
        num_layers: Blocks, L.
        num_heads: Key/value heads of a block, K.
        head_size: H.
        is_projected: Whether the values come from P vectors of K * H by a map, tanh and a second map, all of them trained; the file
            then holds what comes out.
        device: Of the parameters.
    """

    is_adapter: ClassVar[bool] = True
    """Its tensors are no part of the model's own files."""

    def __init__(
        self,
        num_tokens: int,
        num_layers: int,
        num_heads: int,
        head_size: int,
        *,
        is_projected: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.num_tokens, self.num_layers, self.num_heads, self.head_size = num_tokens, num_layers, num_heads, head_size
        width = num_heads * head_size
        total = 2 * num_layers * width

        def new(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device))

        self.vectors = new(num_tokens, width if is_projected else total)
        self.inner = new(width, width) if is_projected else None
        self.inner_bias = new(width) if is_projected else None
        self.outer = new(total, width) if is_projected else None
        self.outer_bias = new(total) if is_projected else None
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the vectors from N(0, 1), and the maps as `torch.nn.Linear` does: PEFT's first values."""
        nn.init.normal_(self.vectors)
        for weight, bias in ((self.inner, self.inner_bias), (self.outer, self.outer_bias)):
            if weight is not None and bias is not None:
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
                nn.init.uniform_(bias, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values of each block, (P, K, H) float each."""
        own = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        return self.cut(projected(own))

    def cut(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (P, L * 2 * K * H) values as keys and values of each block, (P, K, H) each."""
        parts = values.view(self.num_tokens, 2 * self.num_layers, self.num_heads, self.head_size).unbind(1)
        return list(zip(parts[::2], parts[1::2], strict=True))

    def extra_repr(self) -> str:
        """What `print` shows of this adapter."""
        how = ", projected" if self.inner is not None else ""
        return f"{self.num_tokens} keys and values in {self.num_layers} blocks of {self.num_heads} heads{how}"


def projected(own: Mapping[str, Tensor]) -> Tensor:
    """Return the values that a prefix's parameters, by their names, stand for: (P, L * 2 * K * H) float."""
    if "inner" not in own:
        return own["vectors"]
    inside = torch.tanh(F.linear(own["vectors"], own["inner"], own["inner_bias"]))
    return F.linear(inside, own["outer"], own["outer_bias"])


def prefix_of(model: nn.Module) -> Prefix | None:
    """Return the keys and values that stand before those of a model's attention; None for none."""
    return next((module for module in model.modules() if isinstance(module, Prefix)), None)


def find_stack(model: nn.Module) -> tuple[str, Decoder | Encoder]:
    """Return the name and the stack of a model that gets a prefix: the decoder, where it has one.

    Raises:
        ConfigError: It has neither.
    """
    for name, kind in (("decoder", Decoder), ("encoder", Encoder)):
        stack = getattr(model, name, None)
        if isinstance(stack, kind):
            return name, stack
    raise ConfigError(f"adapter.method=prefix: {type(model).__name__} has no stack of blocks; use lora")


def sizes_of(stack: Decoder | Encoder) -> tuple[int, int, int]:
    """Return the blocks of a stack, and the key/value heads and their size in each."""
    attentions = [next(each for each in block.modules() if isinstance(each, Attention)) for block in stack.layers]
    found = {(each.num_key_value_heads, each.head_size) for each in attentions}
    assert len(found) == 1
    return (len(attentions), *found.pop())


def new_prefix(stack: Decoder | Encoder, num_tokens: int, *, is_projected: bool = False) -> Prefix:
    """Return a new prefix for a stack, on the device of its values."""
    device = next(stack.parameters()).device
    return Prefix(num_tokens, *sizes_of(stack), is_projected=is_projected, device=device)


def require_prefix(model: nn.Module, family: str, task: str, config: AdapterConfig) -> None:
    """Refuse a model that PEFT runs no prefix with.

    Raises:
        ConfigError: Names the family and the task, and what to do.
    """
    tasks, name = _RUN_IN_PEFT.get(family, ()), type(model).__name__
    if not tasks:
        raise ConfigError(f"adapter.method=prefix: PEFT runs no prefix with {name}; use lora or prompt")
    if task not in tasks:
        raise ConfigError(
            f"adapter.method=prefix: transformers' {name} for {task} takes no past keys and values, so PEFT runs a prefix for "
            f"{' and '.join(tasks)} alone; use lora or prompt"
        )
    room = cast(Any, model).max_length
    if config.num_virtual_tokens >= room:
        raise ConfigError(f"adapter.num_virtual_tokens={config.num_virtual_tokens} leaves no room in {room} positions; use fewer")
