"""One encoded text, and the ways to shorten it."""

from dataclasses import dataclass
from typing import Literal

from modelzoo.errors import DataError

__all__ = ["Encoding", "Truncation", "check_text"]

Truncation = Literal["longest_first", "only_first", "only_second", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """One encoded text, pair, list of words, or window of a text."""

    input_ids: list[int]
    token_type_ids: list[int] | None = None
    """0 for the first text, 1 for the second; None if the tokenizer makes none."""
    offsets: list[tuple[int, int]] | None = None
    """Characters [start, end) of each token in its own text; only when asked for."""
    sequence_ids: list[int | None] | None = None
    """0 or 1 for the text that a token is from, None for special tokens; only when asked for."""
    word_ids: list[int | None] | None = None
    """Number of the word that a token is from, None for special tokens; only from `encode_words`."""
    truncated: int = 0
    """Tokens that were cut off."""
    row: int = 0
    """Number of the text that this is from, counted from 0: windows of one text share it."""


def check_text(text: object, row: int) -> None:
    """Check that a value is a text that the tokenizer can take.

    Raises:
        DataError: If it is none, or holds half of a surrogate pair; it names the row, counted from 1.
    """
    if not isinstance(text, str):
        raise DataError(f"row {row + 1}: expected a text, found {text!r} ({type(text).__name__})")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"row {row + 1}: expected Unicode text, found a lone surrogate {text[error.start]!a} at character {error.start}; "
            f"repair the file's escapes"
        ) from error
