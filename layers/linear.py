"""A linear map that says how it may be split over a tensor axis."""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.layers.vocabulary import Vocabulary

__all__ = ["Linear", "LinearAdapter", "TensorSplit"]

TensorSplit = Literal["column", "row", "vocabulary", "heads"]
"""How a tensor-parallel runtime may cut a weight: by output features, by input features, by the rows of a table or the outputs of a
head over the vocabulary, by the columns of a table of attention heads."""


class LinearAdapter(Protocol):
    """What fine-tuning may set as the `adapter` of a map, to change what comes out of it."""

    def __call__(self, hidden: Tensor, mapped: Tensor, linear: "Linear") -> Tensor:
        """Return the changed output.

        Args:
            hidden: (..., in_features) float that was mapped.
            mapped: (..., out_features) float that the map made of it.
            linear: The map: its weight, bias and scale.
        """


class Linear(nn.Module):
    """y = scale * (x Wᵀ) + b, as `torch.nn.Linear` with a scale.

    Args:
        in_features: Width of the input, at least 1.
        out_features: Width of the output, at least 1.
        bias: Whether a bias is added.
        scale: Factor on x Wᵀ; CPM-1 and CPM-2 use 1/sqrt(in_features).
        tensor_split: How the weight may be cut over a tensor axis: "column" (output features), "row" (input features),
            "vocabulary" (the outputs of a language model's head), None (not at all). A declaration only: nothing here acts on it.
    """

    vocabulary: Vocabulary | None = None
    """Set by a runtime that has cut a head over the vocabulary."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scale: float = 1.0,
        tensor_split: TensorSplit | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.scale = scale
        self.tensor_split = tensor_split
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.adapter: LinearAdapter | None = None
        """A module that changes what comes out; None for none."""
        self.keep_weight: Callable[[Tensor], Tensor] | None = None
        """What a loaded weight is stored as; None for as it comes. Set by who stores frozen ones in fewer bits."""
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the weight from N(0, std²) and the bias with zeros."""
        nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map the last dimension.

        Args:
            hidden: (..., in_features) float.

        Returns:
            (..., out_features) float.
        """
        if self.scale == 1.0:
            mapped = F.linear(hidden, self.weight, self.bias)
        else:
            mapped = F.linear(hidden, self.weight) * self.scale
            mapped = mapped if self.bias is None else mapped + self.bias
        return mapped if self.adapter is None else self.adapter(hidden, mapped, self)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        scale = "" if self.scale == 1.0 else f", scale={self.scale:.4g}"
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}{scale}"
