"""A small model with units and a tied pair, and one training step of it, for tests of the runtime."""

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """Embedding, two blocks and a tied head over a vocabulary of 7, which no even number of ranks divides."""

    def __init__(self, vocab_size: int = 7, width: int = 8, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(2))
        self.head = nn.Linear(width, vocab_size)
        self.register_buffer("offset", torch.zeros(3))
        self._tied = tied
        if tied:
            self.head.weight = self.embedding.weight

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)

    def tied_parameters(self) -> list[tuple[str, str]]:
        return [("embedding.weight", "head.weight")] if self._tied else []

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def build(tied: bool = True, seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(tied=tied)


def adamw(model: nn.Module, lr: float = 0.01) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, world_size: int = 1, seed: int = 1) -> None:
    """One step on 12 rows, of which this rank takes every `world_size`-th; the loss is the sum over all rows / 12."""
    from modelzoo.runtime import clip_grad_norm

    ids = torch.randint(0, 7, (12, 5), generator=torch.Generator().manual_seed(seed))[rank::world_size]
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum") / 60
    loss.backward()
    clip_grad_norm(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
