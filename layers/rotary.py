"""Rotary position embedding (Su et al., 2021), with the layouts and the scalings that checkpoints use."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from modelzoo.layers.initialization import DEFAULT_STD
from modelzoo.layers.layout import Layout

__all__ = ["Position", "RotaryEmbedding", "RotaryScaling", "RotaryTable", "apply_rotary"]


class RotaryTable(NamedTuple):
    """Phases of some tokens.

    Attributes:
        cos: (..., 1, R) float32, R the rotated part of a head: factor of each dimension.
        sin: As `cos`: factor of each dimension's partner, negative for the first of a pair.
        is_interleaved: Whether dimension 2i turns with 2i+1 (GPT-J) or i with i + R/2 (LLaMA).
    """

    cos: Tensor
    sin: Tensor
    is_interleaved: bool


class Position(NamedTuple):
    """What a stack tells its attention layers about positions; every part may be absent.

    Attributes:
        query_rotary: Phases of the queries.
        key_rotary: Phases of the keys.
        bias: Added to the scores: (B or 1, N, T, S) dense, or one (N, T, S) a sequence when packed.
        prefix: Keys and values that stand before each sequence's own in self-attention, (P, K, H) float each.
    """

    query_rotary: RotaryTable | None = None
    key_rotary: RotaryTable | None = None
    bias: Tensor | tuple[Tensor, ...] | None = None
    prefix: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryScaling:
    """How rotary frequencies are stretched beyond the length that a model was trained on.

    The formulas are those of transformers' `modeling_rope_utils`.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3"]
    """linear: every frequency divided by the factor. dynamic: theta grows with the sequence (NTK). yarn: Peng et al., 2023.
    llama3: long wavelengths divided, short ones kept, a ramp between."""
    factor: float
    """How many times longer than the original length, at least 1."""
    original_max_positions: int = 0
    """Positions that the model was trained on; needed by all kinds but linear."""
    low_frequency_factor: float = 1.0
    """llama3: wavelengths above original / this are divided by the factor."""
    high_frequency_factor: float = 4.0
    """llama3: wavelengths below original / this are kept."""
    beta_fast: float = 32.0
    """yarn: rotations over the original length above which a frequency is kept."""
    beta_slow: float = 1.0
    """yarn: rotations below which a frequency is divided by the factor."""
    attention_factor: float | None = None
    """yarn: factor on cos and sin; None for 0.1 ln(factor) + 1."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.kind not in ("linear", "dynamic", "yarn", "llama3"):
            raise ValueError(f"rotary scaling kind={self.kind!r} is not known; use linear, dynamic, yarn or llama3")
        if self.factor < 1:
            raise ValueError(f"rotary scaling factor={self.factor} must be at least 1")
        if self.kind != "linear" and self.original_max_positions < 1:
            raise ValueError(f"rotary scaling kind={self.kind!r} needs original_max_positions, got {self.original_max_positions}")
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError(
                f"rotary scaling high_frequency_factor={self.high_frequency_factor} must be greater than "
                f"low_frequency_factor={self.low_frequency_factor}"
            )


class RotaryEmbedding(nn.Module):
    """Turns pairs of dimensions of queries and keys by an angle proportional to the position.

    Phases are always computed in float32: half precision loses the angle within a few hundred positions.

    Args:
        head_size: H.
        theta: Base of the wavelengths, greater than 1.
        rotary_size: Leading dimensions of a head that are turned, even, at most H; None for all.
        is_interleaved: Dimension 2i turns with 2i+1 (GPT-J, GLM) instead of i with i + rotary_size/2 (LLaMA).
        scaling: Stretching for longer sequences; None for none.
    """

    inverse_frequencies: Tensor

    def __init__(
        self,
        head_size: int,
        *,
        theta: float = 10000.0,
        rotary_size: int | None = None,
        is_interleaved: bool = False,
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        self.rotary_size = head_size if rotary_size is None else rotary_size
        if self.rotary_size % 2 or not 0 < self.rotary_size <= head_size:
            raise ValueError(f"rotary_size={self.rotary_size} must be even and at most head_size={head_size}")
        if theta <= 1:
            raise ValueError(f"theta={theta} must be greater than 1")
        if scaling is not None and scaling.kind == "dynamic" and self.rotary_size < 4:
            raise ValueError(f"rotary_size={self.rotary_size} is too small for dynamic scaling; use at least 4")
        self.theta = theta
        self.is_interleaved = is_interleaved
        self.scaling = scaling
        self.register_buffer("inverse_frequencies", torch.empty(self.rotary_size // 2), persistent=False)
        self.init_weights()

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Recompute the frequencies, which no checkpoint holds; `std` has no part in it."""
        self.inverse_frequencies = self._frequencies(self.theta).to(self.inverse_frequencies.device)

    def forward(self, query: Layout, key: Layout | None = None) -> Position:
        """Return the phases of the queries and of the keys.

        Args:
            query: Layout of the queries.
            key: Layout of the keys; None for the queries' own.
        """
        if key is None:
            table = self.table(query.positions)
            return Position(table, table)
        length = None
        if self._is_dynamic:
            length = max(_length(query.positions), _length(key.positions))
        return Position(self.table(query.positions, length), self.table(key.positions, length))

    def table(self, positions: Tensor, length: int | None = None) -> RotaryTable:
        """Return the phases of some positions.

        Args:
            positions: (...) int64.
            length: Dynamic scaling only: tokens of the longest sequence; None for the highest of `positions` + 1.

        Returns:
            A table of (..., 1, rotary_size) float32.
        """
        if self.inverse_frequencies.dtype != torch.float32:  # `to(torch.bfloat16)` of a model casts its buffers too
            self.init_weights()
        frequencies = self.inverse_frequencies
        if self._is_dynamic:
            frequencies = self._dynamic_frequencies(_length(positions) if length is None else length).to(positions.device)
        phases = positions.float().unsqueeze(-1).unsqueeze(-1) * frequencies
        factor = self._attention_factor()
        cos, sin = phases.cos(), phases.sin()
        if factor != 1:
            cos, sin = cos * factor, sin * factor
        return RotaryTable(self._paired(cos, cos), self._paired(-sin, sin), self.is_interleaved)

    def _paired(self, of_first: Tensor, of_second: Tensor) -> Tensor:
        """Put the numbers of each pair, (..., R/2), where its two dimensions are: (..., R)."""
        if self.is_interleaved:
            return torch.stack((of_first, of_second), dim=-1).flatten(-2)
        return torch.cat((of_first, of_second), dim=-1)

    @property
    def _is_dynamic(self) -> bool:
        return self.scaling is not None and self.scaling.kind == "dynamic"

    def _frequencies(self, theta: float) -> Tensor:
        size, scaling = self.rotary_size, self.scaling
        frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64, device="cpu").float() / size)
        if scaling is None or scaling.kind == "dynamic":
            return frequencies
        if scaling.kind == "linear":
            return frequencies / scaling.factor
        return _llama3(frequencies, scaling) if scaling.kind == "llama3" else _yarn(frequencies, theta, size, scaling)

    def _dynamic_frequencies(self, length: int) -> Tensor:
        scaling = self.scaling
        assert scaling is not None
        length = max(length, scaling.original_max_positions)
        growth = scaling.factor * length / scaling.original_max_positions - (scaling.factor - 1)
        theta = self.theta * growth ** (self.rotary_size / (self.rotary_size - 2))
        return self._frequencies(theta)

    def _attention_factor(self) -> float:
        if self.scaling is None or self.scaling.kind != "yarn":
            return 1.0
        given = self.scaling.attention_factor
        return given if given is not None else 0.1 * math.log(self.scaling.factor) + 1.0

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        parts = [f"{self.rotary_size}, theta={self.theta:g}"]
        parts += ["interleaved"] if self.is_interleaved else []
        parts += [f"{self.scaling.kind} x{self.scaling.factor:g}"] if self.scaling else []
        return ", ".join(parts)


def _length(positions: Tensor) -> int:
    return int(positions.max()) + 1 if positions.numel() else 0


def _llama3(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    ramp = (scaling.original_max_positions / wavelengths - low) / (high - low)
    blended = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    stretched = torch.where(wavelengths > scaling.original_max_positions / low, frequencies / scaling.factor, frequencies)
    is_between = (wavelengths >= scaling.original_max_positions / high) & (wavelengths <= scaling.original_max_positions / low)
    return torch.where(is_between, blended, stretched)


def _yarn(frequencies: Tensor, theta: float, size: int, scaling: RotaryScaling) -> Tensor:
    def dimension_of(rotations: float) -> float:
        return size * math.log(scaling.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), size - 1)
    ramp = ((torch.arange(size // 2, device="cpu").float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / scaling.factor * ramp + frequencies * (1 - ramp)


def apply_rotary(heads: Tensor, table: RotaryTable) -> Tensor:
    """Turn the leading dimensions of every head.

    Args:
        heads: (..., N, H) float.
        table: Phases of (..., 1, R), R <= H.

    Returns:
        (..., N, H) in the dtype of `heads`.
    """
    cos, sin = table.cos, table.sin
    if cos.dtype != heads.dtype:
        cos, sin = cos.to(heads.dtype), sin.to(heads.dtype)
    size = cos.shape[-1]
    is_whole = size == heads.shape[-1]
    turned = heads if is_whole else heads[..., :size]
    if table.is_interleaved:
        partners = turned.unflatten(-1, (size // 2, 2)).flip(-1).flatten(-2)
    else:
        partners = turned.roll(size // 2, -1)
    turned = turned * cos + partners * sin
    return turned if is_whole else torch.cat((turned, heads[..., size:]), dim=-1)
