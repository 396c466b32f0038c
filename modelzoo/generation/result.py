"""What generation returns."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Generation"]


@dataclass(frozen=True, slots=True)
class Generation:
    """Sequences that a model wrote; R rows are the prompts, each `num_return_sequences` times."""

    sequences: Tensor
    """(R, T + steps) int64: the prompts as they were read, then what was written, padded on the right after a row's end. Of an
    encoder-decoder (R, 1 + steps): the start token, then what was written. As transformers' `sequences`."""
    new_ids: list[list[int]]
    """What was written in each row, its end token included, without padding."""
    texts: list[str] | None = None
    """What was written as text, without special tokens and up to a stop string; None without a tokenizer."""
    scores: Tensor | None = None
    """(R, steps, V) float32, if asked for: every step's scores after all rules, -inf where a token could not be chosen."""
    sequence_scores: Tensor | None = None
    """(R,) float32, of a beam search: each sequence's log-probability under the length penalty."""
