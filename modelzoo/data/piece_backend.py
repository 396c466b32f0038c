"""A tokenizer whose pieces are cut in Python: ids, templates, pairs and truncation are those of a `tokenizers.Tokenizer`.

The Rust side is given the pieces as words, so that it need not know how a text is cut.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, processors

from modelzoo.data.tokenizer_files import Backend

__all__ = ["Piece", "Pieces", "piece_backend"]


class Piece(NamedTuple):
    """A token of the vocabulary and the characters [start, end) of the text that it is from."""

    token: str
    start: int
    end: int


class Pieces(Protocol):
    """How a family cuts texts, and puts them together again."""

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text."""

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""


class _Encoded:
    """An encoding whose words are pieces, told in characters and words of the texts that they are from."""

    def __init__(self, encoding: Any, spans: Sequence[Sequence[tuple[int, int]]], owners: Sequence[Sequence[int]] | None) -> None:
        self._encoding, self._spans, self._owners = encoding, spans, owners

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoding, name)

    def __len__(self) -> int:
        return len(self._encoding)

    @property
    def overflowing(self) -> list["_Encoded"]:
        """The further windows of a text."""
        return [_Encoded(each, self._spans, self._owners) for each in self._encoding.overflowing]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Characters of each token in its own text."""
        pairs = zip(self._encoding.sequence_ids, self._encoding.word_ids, strict=True)
        return [(0, 0) if text is None else self._spans[text][piece] for text, piece in pairs]

    @property
    def word_ids(self) -> list[int | None]:
        """The word that each token is from."""
        owners = self._owners
        pairs = zip(self._encoding.sequence_ids, self._encoding.word_ids, strict=True)
        return [None if text is None or owners is None else owners[text][piece] for text, piece in pairs]


class _PieceBackend:
    """A `tokenizers.Tokenizer` that is given texts and sees their pieces."""

    def __init__(self, tokenizer: RustTokenizer, pieces: Pieces, special_ids: frozenset[int]) -> None:
        self._tokenizer, self._pieces, self._special_ids = tokenizer, pieces, special_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, inputs: Sequence[Any], is_pretokenized: bool = False, add_special_tokens: bool = True) -> list[_Encoded]:
        """Encode texts, pairs of texts, or lists of words."""
        cut = [self._cut(item, is_words=is_pretokenized) for item in inputs]
        words = [tuple(tokens) if len(tokens) == 2 else tokens[0] for tokens, _, _ in cut]
        encoded = self._tokenizer.encode_batch(words, is_pretokenized=True, add_special_tokens=add_special_tokens)
        return [_Encoded(each, spans, owners) for each, (_, spans, owners) in zip(encoded, cut, strict=True)]

    encode_batch_fast = encode_batch

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        kept = [number for number in ids if number >= 0 and not (skip_special_tokens and number in self._special_ids)]
        found = (self._tokenizer.id_to_token(number) for number in kept)
        return self._pieces.text([token for token in found if token is not None])

    def _cut(self, item: Any, *, is_words: bool) -> tuple[list[list[str]], list[list[tuple[int, int]]], list[list[int]] | None]:
        texts = [item] if is_words else list(item) if isinstance(item, tuple) else [item]
        tokens, spans, owners = [], [], []
        for text in texts:
            parts = list(text) if is_words else [text]
            if not all(isinstance(part, str) for part in parts):
                raise TypeError("expected texts")
            "".join(parts).encode("utf-8")  # a lone surrogate is refused by the caller, which knows the row
            pieces = [(number, piece) for number, part in enumerate(parts) for piece in self._pieces.pieces(part)]
            tokens.append([piece.token for _, piece in pieces])
            spans.append([(piece.start, piece.end) for _, piece in pieces])
            owners.append([number for number, _ in pieces])
        return tokens, spans, owners if is_words else None


def piece_backend(
    vocabulary: Mapping[str, int],
    pieces: Pieces,
    roles: Mapping[str, str],
    *,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    special: Sequence[str] = (),
) -> Backend:
    """Return the backend of a vocabulary.

    Args:
        vocabulary: Id by token.
        pieces: How a text is cut.
        roles: Token by role, as "pad_token"; a token that the vocabulary lacks has no id.
        before: Special tokens before each text.
        after: Special tokens after a text or a pair.
        special: Further tokens that `decode` leaves out.
    """
    tokenizer = RustTokenizer(models.WordLevel(dict(vocabulary), unk_token=roles["unk_token"]))
    begin, end = ("".join(f"{token}:0 " for token in side) for side in (before, after))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A:0 {end}".strip(),
        pair=f"{begin}$A:0 {begin}$B:0 {end}".strip(),
        special_tokens=[(token, vocabulary[token]) for token in dict.fromkeys((*before, *after))],
    )
    ids = {role: vocabulary.get(token) for role, token in roles.items()}
    hidden = [*ids.values(), *(vocabulary.get(token) for token in special)]
    return Backend(
        tokenizer=_PieceBackend(tokenizer, pieces, frozenset(each for each in hidden if each is not None)),  # type: ignore[arg-type]  # it answers as a Tokenizer does
        token_ids=ids,
        has_token_types=False,
        max_length=None,
        truncation_side="right",
    )
