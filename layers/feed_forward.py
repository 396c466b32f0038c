"""The position-wise feed-forward network, plain or gated."""

from typing import ClassVar

from torch import Tensor, nn

from modelzoo.layers.activation import activation as activation_function
from modelzoo.layers.dropout import Dropout
from modelzoo.layers.linear import Linear

__all__ = ["FeedForward"]


class FeedForward(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)) when gated (Shazeer, 2020).

    Args:
        hidden_size: D.
        intermediate_size: F.
        activation: A name of `modelzoo.layers.ACTIVATIONS`.
        is_gated: Whether a gate multiplies the inner features.
        bias: Whether the maps have a bias.
        dropout: Probability of dropping an inner feature in training (T5).
        output_size: Width of the result; None for hidden_size.
        length_scale: Whether each map's products are divided by the square root of its input's width (CPM-1, CPM-2, CPM-Bee).
    """

    tensor_region: ClassVar[bool] = True
    """The input is read by maps that a runtime may cut alone, and the output is that of one. A declaration only."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "gelu",
        is_gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        output_size: int | None = None,
        length_scale: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self._function = activation_function(activation)
        scales = [width**-0.5 if length_scale else 1.0 for width in (hidden_size, intermediate_size)]

        def inner() -> Linear:
            return Linear(hidden_size, intermediate_size, bias, scale=scales[0], tensor_split="column")

        self.gate = inner() if is_gated else None
        self.up = inner()
        self.dropout = Dropout(dropout)
        output_size = hidden_size if output_size is None else output_size
        self.down = Linear(intermediate_size, output_size, bias, scale=scales[1], tensor_split="row")

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each token by itself.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., output_size) float.
        """
        gate, up = self.project(hidden)
        inner = self._function(up) if gate is None else self._function(gate) * up
        output: Tensor = self.down(self.dropout(inner))
        return output

    def project(self, hidden: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return what the gate, if there is one, and the inner map make of the input.

        Args:
            hidden: (..., D) float.

        Returns:
            Each (..., F) float; None for no gate.
        """
        return None if self.gate is None else self.gate(hidden), self.up(hidden)

    def extra_repr(self) -> str:
        """What `print` shows of this layer, beside its maps."""
        return f"activation={self.activation}"
