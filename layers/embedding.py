"""Lookup tables: tokens (also used backwards, as a tied output head) and learned positions."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.layers.linear import TensorSplit
from modelzoo.layers.vocabulary import Vocabulary

__all__ = ["Embedding", "EmbeddingAdapter", "LearnedPositionEmbedding"]


class EmbeddingAdapter(Protocol):
    """What fine-tuning may set as the `adapter` of a table, to change the rows that are looked up; scores are left alone."""

    def __call__(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Return the changed rows.

        Args:
            ids: (...) int.
            rows: (..., embedding_dim) float, before the table's scale.
        """


class Embedding(nn.Module):
    """A table of vectors, one row an id.

    Args:
        num_embeddings: Rows of the table, at least 1.
        embedding_dim: Width of a row, at least 1.
        padding_idx: The row that starts at zero and gets no gradient; None for no such row.
        scale: Factor on the looked-up rows (MiniCPM, CPM-1); `logits` does not use it.
        tensor_split: How the table may be cut over a tensor axis: "vocabulary" (rows), or None for a small one, which is not. A
            declaration only: nothing here acts on it.
    """

    vocabulary: Vocabulary | None = None
    """Set by a runtime that has cut the table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        scale: float = 1.0,
        tensor_split: TensorSplit | None = "vocabulary",
    ) -> None:
        super().__init__()
        if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
            raise ValueError(
                f"padding_idx={padding_idx} is not a row of a table of {num_embeddings}; use 0 to {num_embeddings - 1}"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.scale = scale
        self.tensor_split = tensor_split
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        self.adapter: EmbeddingAdapter | None = None
        """A module that changes the rows that are looked up; None for none."""
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the table from N(0, std²) and the padding row with zeros."""
        nn.init.normal_(self.weight, std=std)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """Look rows up.

        Args:
            ids: (...) int, each in [0, num_embeddings).

        Returns:
            (..., embedding_dim) float.
        """
        rows = F.embedding(ids, self.weight, self.padding_idx)
        if self.adapter is not None:
            rows = self.adapter(ids, rows)
        return rows if self.scale == 1.0 else rows * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every row against `hidden`: the output head of a model that ties it to its input table.

        Args:
            hidden: (..., embedding_dim) float.

        Returns:
            (..., num_embeddings) float.
        """
        return F.linear(hidden, self.weight)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        scale = "" if self.scale == 1.0 else f", scale={self.scale:.4g}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{scale}"


class LearnedPositionEmbedding(Embedding):
    """A table of positions whose first usable row is `offset`.

    Args:
        num_embeddings: Rows of the table, those before `offset` included.
        embedding_dim: Width of a row.
        padding_idx: As in `Embedding`; RoBERTa reserves the row of the padding token's id.
        offset: Row of position 0: 0 for BERT, padding_idx + 1 for RoBERTa, 2 for OPT.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, offset: int = 0) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, tensor_split=None)
        self.offset = offset

    @property
    def max_positions(self) -> int:
        """How many positions, counted from 0, the table can tell apart."""
        return self.num_embeddings - self.offset

    def forward(self, positions: Tensor) -> Tensor:
        """Look positions up.

        Args:
            positions: (...) int, each in [0, max_positions).

        Returns:
            (..., embedding_dim) float.
        """
        return super().forward(positions + self.offset if self.offset else positions)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return super().extra_repr() + (f", offset={self.offset}" if self.offset else "")
