"""Task heads that several families share."""

import torch
from torch import Tensor, nn

from modelzoo.layers import Dropout, Embedding, LayerNorm, Linear, activation
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built

__all__ = ["DenseHead", "LinearHead", "MaskedLmHead", "Pooler"]


class Pooler(nn.Module):
    """act(W x + b) of a sequence's first token (Devlin et al., 2019).

    Args:
        hidden_size: D.
        output_size: Width of the result; None for hidden_size.
        activation_name: A name of `modelzoo.layers.ACTIVATIONS`.
    """

    def __init__(self, hidden_size: int, output_size: int | None = None, *, activation_name: str = "tanh") -> None:
        super().__init__()
        self.activation = activation_name
        self._function = activation(activation_name)
        self.dense = Linear(hidden_size, hidden_size if output_size is None else output_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Pool.

        Args:
            hidden: (B, D) float, of the first tokens.

        Returns:
            (B, output_size) float.
        """
        return self._function(self.dense(hidden))

    def extra_repr(self) -> str:
        """What `print` shows of this head, beside its parts."""
        return f"activation={self.activation}"


class LinearHead(nn.Module):
    """A linear map to class scores, after dropout.

    Args:
        hidden_size: D.
        num_labels: C.
        dropout: Probability of dropping an input feature in training.
    """

    def __init__(self, hidden_size: int, num_labels: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = Linear(hidden_size, num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Score.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., C) float.
        """
        scores: Tensor = self.output(self.dropout(hidden))
        return scores


class DenseHead(nn.Module):
    """Dropout, act(W x + b), dropout, then a linear map to class scores (RoBERTa's classifier).

    Args:
        hidden_size: D.
        num_labels: C.
        dropout: Probability of dropping a feature in training, at both places.
        activation_name: A name of `modelzoo.layers.ACTIVATIONS`.
        drops_input: Whether there is a dropout before the first map too; DistilBERT has none there.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        *,
        dropout: float = 0.0,
        activation_name: str = "tanh",
        drops_input: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.activation = activation_name
        self.drops_input = drops_input
        self._function = activation(activation_name)
        self.dense = Linear(hidden_size, hidden_size)
        self.output = Linear(hidden_size, num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Score.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., C) float.
        """
        if self.drops_input:
            hidden = self.dropout(hidden)
        scores: Tensor = self.output(self.dropout(self._function(self.dense(hidden))))
        return scores

    def extra_repr(self) -> str:
        """What `print` shows of this head, beside its parts."""
        return f"activation={self.activation}, drops_input={self.drops_input}"


class MaskedLmHead(nn.Module):
    """norm(act(W x + b)), then scores against the token table, plus a bias a token (BERT, RoBERTa).

    Args:
        hidden_size: D.
        vocab_size: V.
        activation_name: A name of `modelzoo.layers.ACTIVATIONS`.
        norm_eps: Of the norm.
        is_tied: Whether the table is the token embedding, handed to `forward`; otherwise the head has one of its own.
        embedding_size: Width of the table (ELECTRA); None for hidden_size.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        activation_name: str,
        norm_eps: float,
        is_tied: bool,
        embedding_size: int | None = None,
    ) -> None:
        super().__init__()
        embedding_size = hidden_size if embedding_size is None else embedding_size
        self.dense = Linear(hidden_size, embedding_size)
        self.vocab_size = vocab_size
        self.activation = activation_name
        self._function = activation(activation_name)
        self.norm = LayerNorm(embedding_size, norm_eps)
        self.decoder = None if is_tied else Linear(embedding_size, vocab_size, bias=False, tensor_split="vocabulary")
        self.bias = nn.Parameter(torch.empty(vocab_size))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Set the token bias to zeros; the parts initialise themselves."""
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor, embedding: Embedding) -> Tensor:
        """Score every token of the vocabulary.

        Args:
            hidden: (..., D) float.
            embedding: The model's token table, used when the head is tied.

        Returns:
            (..., V) float.
        """
        features = self.norm(self._function(self.dense(hidden)))
        scores: Tensor = embedding.logits(features) if self.decoder is None else self.decoder(features)
        return scores + self.bias

    def extra_repr(self) -> str:
        """What `print` shows of this head, beside its parts."""
        return f"vocab_size={self.vocab_size}, activation={self.activation}, {'tied' if self.decoder is None else 'not tied'}"
