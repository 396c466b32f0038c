"""Values in eight bits: blocks of 256 share a scale, and a code says which of 256 values between -1 and 1 each is.

The map is the dynamic one of Dettmers (2016, arXiv 1511.04561), dense near zero; the blocks are those of Dettmers et al. (2022,
arXiv 2110.02861, section 2.1). Codes and scales are those of bitsandbytes and torchao, with one difference: a block never crosses a
row, so that rows can be cut over ranks, and the last one of a row may be shorter.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["BLOCK", "EightBits", "dynamic_map", "has_eight_bits", "moment_bytes"]

BLOCK = 256
LEAST_VALUES = 4096
"""Tensors with fewer stay as they are, as in bitsandbytes: they are small, and often the sensitive ones."""
LEAST_WIDTH = 64
"""Rows that are shorter would spend more than 6 % on scales."""
SMALLEST = 1e-12


def has_eight_bits(shape: Sequence[int]) -> bool:
    """Return whether the moments of a parameter of that shape, as it is on one process, are kept in eight bits."""
    return len(shape) > 1 and math.prod(shape) >= LEAST_VALUES and math.prod(shape[1:]) >= LEAST_WIDTH


def moment_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of both moments of a parameter of that shape: 2.03 a value instead of 8, or 8 where it is too small."""
    count = math.prod(shape)
    return 2 * (count + 4 * shape[0] * -(-math.prod(shape[1:]) // BLOCK)) if has_eight_bits(shape) else 8 * count


@functools.cache
def dynamic_map(is_signed: bool) -> Tensor:
    """Return the 256 values, float32 in ascending order: seven decades, the upper ones finer, and 0 and 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        bounds = torch.linspace(0.1, 1, 2 ** (decade + (0 if is_signed else 1)) + 1)
        means = (10 ** (decade - 6) * ((bounds[:-1] + bounds[1:]) / 2.0)).tolist()
        values += means + [-mean for mean in means] * is_signed
    return torch.tensor(sorted(values))


class EightBits:
    """Codes and scales of float values, and back.

    Args:
        is_signed: Whether values below zero are among them.
        device: Of the values.
    """

    def __init__(self, is_signed: bool, device: torch.device) -> None:
        levels = dynamic_map(is_signed)
        middles = (levels[:-1] + levels[1:]) / 2
        # a float's upper 16 bits leave at most one middle to compare with: their code is that of the smallest such float
        upper = torch.arange(2**16, dtype=torch.int32)
        least = ((upper << 16) | (upper >= 2**15).int() * 0xFFFF).view(torch.float32).nan_to_num(0.0)
        self._levels = levels.to(device)
        self._middles = torch.cat([middles, torch.tensor([torch.inf])]).to(device)
        self._codes = torch.bucketize(least, middles, right=True, out_int32=True).to(device)

    def pack(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes and scales.

        Args:
            values: (rows, width) float32, finite.

        Returns:
            (rows, width) uint8, and (rows, blocks) float32: the largest magnitude of each block.
        """
        rows, width = values.shape
        blocks = pad(values, (0, -width % BLOCK)).view(rows, -1, BLOCK)
        scales = blocks.abs().amax(-1).clamp(min=SMALLEST)
        scaled = (blocks / scales.unsqueeze(-1)).view(-1)
        codes = self._codes.index_select(0, (scaled.view(torch.int32) >> 16) & 0xFFFF)
        codes += scaled >= self._middles.index_select(0, codes)
        return codes.to(torch.uint8).view(rows, -1)[:, :width], scales

    def unpack(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Return the values, (rows, width) float32.

        Args:
            codes: (rows, width) uint8.
            scales: (rows, blocks) float32.
        """
        rows, width = codes.shape
        values = self._levels.index_select(0, codes.reshape(-1).int()).view(rows, width)
        return values.mul_(scales.repeat_interleave(BLOCK, dim=1)[:, :width])
