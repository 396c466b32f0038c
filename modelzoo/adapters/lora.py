"""Changes of low rank to maps and tables (LoRA, Hu et al., 2022), or to the directions of a map's rows (DoRA, Liu et al., 2024).

Each is the `adapter` of one of `modelzoo.layers`' blocks. The block's own values stay as they are, so that one base serves many
adapters, and a change can be taken out again or merged. Formulas and first values are PEFT's.
"""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers import Dropout, Linear
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built

__all__ = ["LowRankMap", "LowRankTable"]


class LowRankMap(nn.Module):
    """The change scale * B A of a map's weight; with `has_magnitude`, W' = magnitude * (W + scale * B A) / its length, row by row.

    B starts at zero, so a new adapter changes nothing. `magnitude` starts at the lengths of W's rows, which this module does not
    know: `modelzoo.adapters.initialize_adapter` fills it when the base has its values. The length gets no gradient (section 4.3).

    Args:
        in_features: Of the map.
        out_features: Of the map.
        r: Rank, at least 1.
        scale: Factor on B A.
        dropout: Probability of dropping an input feature of A in training.
        has_magnitude: Whether the lengths of the rows are trained apart (DoRA).
        device: Of the parameters.
    """

    is_adapter: ClassVar[bool] = True
    """Its tensors are no part of the model's own files."""
    tensor_parts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "column": {"b": 0, "magnitude": 0},
        "vocabulary": {"b": 0, "magnitude": 0},
        "row": {"a": 1},
    }
    """How the map is cut -> parameter -> dimension that is cut with it; the others stay whole and see other values on each rank."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        r: int,
        scale: float,
        *,
        dropout: float = 0.0,
        has_magnitude: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.r = r
        self.scale = scale
        self.dropout = Dropout(dropout)
        self.a = nn.Parameter(torch.empty(r, in_features, device=device))
        self.b = nn.Parameter(torch.empty(out_features, r, device=device))
        self.magnitude = nn.Parameter(torch.empty(out_features, device=device)) if has_magnitude else None
        self.sum_parts: Callable[[Tensor], Tensor] | None = None
        """Adds up over the ranks what each has of the squared lengths; set by a runtime that cuts the rows."""
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill A as `torch.nn.Linear` does and B with zeros; lengths become ones until they are known."""
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        nn.init.zeros_(self.b)
        if self.magnitude is not None:
            nn.init.ones_(self.magnitude)

    def forward(self, hidden: Tensor, mapped: Tensor, linear: Linear) -> Tensor:
        """Return the changed output of a map.

        Args:
            hidden: (..., in_features) float that was mapped.
            mapped: (..., out_features) float, the plain result.
            linear: The map.
        """
        source = self.dropout(hidden)
        change = F.linear(F.linear(source.to(self.a.dtype), self.a), self.b) * (self.scale * linear.scale)
        if self.magnitude is None:
            return mapped + change.to(mapped.dtype)
        if source is hidden:
            product = mapped if linear.bias is None else mapped - linear.bias
        else:
            product = F.linear(source, linear.weight) * linear.scale
        factor = self.magnitude / self._lengths(linear.weight)
        return mapped + ((factor - 1) * product + factor * change).to(mapped.dtype)

    def merged(self, weight: Tensor) -> Tensor:
        """Return the map's weight with the change in it, in its own dtype.

        Args:
            weight: (out_features, in_features) float.
        """
        changed = weight.to(self.a.dtype) + self.scale * (self.b @ self.a)
        if self.magnitude is not None:
            changed = (self.magnitude / self._lengths(weight)).unsqueeze(1) * changed
        return changed.to(weight.dtype)

    @torch.no_grad()
    def _lengths(self, weight: Tensor) -> Tensor:
        """Return the lengths of the rows of W + scale * B A, (out_features,)."""
        changed = weight.to(self.a.dtype) + self.scale * (self.b @ self.a)
        if self.sum_parts is None:
            lengths: Tensor = torch.linalg.norm(changed, dim=1)
            return lengths
        return self.sum_parts(changed.square().sum(1)).sqrt()

    def extra_repr(self) -> str:
        """What `print` shows of this adapter."""
        return f"r={self.r}, scale={self.scale:.4g}" + (", with magnitude" if self.magnitude is not None else "")


class LowRankTable(nn.Module):
    """The change scale * A B of a table's rows as they are looked up; scores of a tied head are left alone, as PEFT leaves them.

    Args:
        num_embeddings: Rows of the table.
        embedding_dim: Width of a row.
        r: Rank, at least 1.
        scale: Factor on A B.
        device: Of the parameters.
    """

    is_adapter: ClassVar[bool] = True
    """Its tensors are no part of the model's own files."""
    tensor_parts: ClassVar[Mapping[str, Mapping[str, int]]] = {"vocabulary": {"a": 0}}
    """As of `LowRankMap`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, r: int, scale: float, *, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.r = r
        self.scale = scale
        self.a = nn.Parameter(torch.empty(num_embeddings, r, device=device))
        self.b = nn.Parameter(torch.empty(r, embedding_dim, device=device))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill A with zeros and B from N(0, 1)."""
        nn.init.zeros_(self.a)
        nn.init.normal_(self.b)

    def forward(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Return the changed rows.

        Args:
            ids: (...) int.
            rows: (..., embedding_dim) float.
        """
        return rows + ((F.embedding(ids, self.a) @ self.b) * self.scale).to(rows.dtype)

    def merged(self, weight: Tensor) -> Tensor:
        """Return the table with the change in it, in its own dtype.

        Args:
            weight: (num_embeddings, embedding_dim) float.
        """
        return (weight.to(self.a.dtype) + self.scale * (self.a @ self.b)).to(weight.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of this adapter."""
        return f"r={self.r}, scale={self.scale:.4g}"
