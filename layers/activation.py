"""Activation functions by the names that Hugging Face configs use."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from modelzoo.errors import ConfigError, closest

__all__ = ["ACTIVATIONS", "activation"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_10(x: Tensor) -> Tensor:
    return F.gelu(x).clamp(-10, 10)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": F.gelu,
        "gelu_python": F.gelu,
        "gelu_10": _gelu_10,
        # Spellings of the tanh approximation (Hendrycks and Gimpel, 2016); torch's fused form differs in the last bits alone.
        "gelu_new": _gelu_tanh,
        "gelu_fast": _gelu_tanh,
        "gelu_pytorch_tanh": _gelu_tanh,
        "gelu_python_tanh": _gelu_tanh,
        "gelu_accurate": _gelu_tanh,
        "quick_gelu": _quick_gelu,
        "relu": F.relu,
        "relu2": _relu_squared,
        "relu6": F.relu6,
        "leaky_relu": F.leaky_relu,
        "silu": F.silu,
        "swish": F.silu,
        "mish": F.mish,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "linear": _identity,
    }
)
"""Elementwise functions on a float tensor of any shape."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of that name.

    Raises:
        ConfigError: The name is not one of `ACTIVATIONS`.
    """
    if name not in ACTIVATIONS:
        near = closest(str(name), ACTIVATIONS)
        hint = f"did you mean {near[0]}?" if near else "use one of these"
        raise ConfigError(f"activation={name!r} is not known; {hint} known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]
