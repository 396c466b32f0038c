"""How CPM-Bee cuts a text (OpenBMB's own tokenizer): special tokens in angle brackets, and the longest tokens between them.

`<name>` is a special token and `<<` is the sign itself. A special token that the vocabulary lacks is a numbered one: `<ans_2>` is
`<ans>`, told apart by a number that `cpm_bee_trees` gives it, and so are unknown words, each run of unknown characters one word.
transformers' class for this family, which it no longer has, took `<<` for two signs and an open bracket for text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from modelzoo.data.cpm_pieces import read_lines
from modelzoo.data.piece_backend import Piece
from modelzoo.errors import DataError

__all__ = ["BeePieces", "BeeToken", "base_token", "escaped", "read_bee_vocabulary"]

_UNKNOWN = "<unk>"
_MARKS = {"</_>": " ", "</n>": "\n"}


class BeeToken(NamedTuple):
    """A piece of a text as it stands there."""

    text: str
    start: int
    end: int
    is_special: bool
    """Whether it was written in brackets."""


def escaped(text: str) -> str:
    """Return a text in which no sign begins a special token."""
    return text.replace("<", "<<")


def base_token(text: str) -> str:
    """Return the vocabulary's token for a numbered one: `<ans>` for `<ans_2>`, the unknown token for a word."""
    is_special = text.startswith("<") and text.endswith(">")
    return f"<{text[1:-1].split('_', maxsplit=1)[0]}>" if is_special else _UNKNOWN


def read_bee_vocabulary(path: Path) -> dict[str, int]:
    """Read CPM-Bee's vocab.txt: one token a line, empty lines not counted; `</_>` and `</n>` stand for a space and a line's end.

    Raises:
        DataError: The file is missing, not UTF-8, or empty, or a token stands there twice.
    """
    vocabulary: dict[str, int] = {}
    for line in filter(None, read_lines(path)):
        token = _MARKS.get(line, line)
        if token in vocabulary:
            raise DataError(f"{path}: expected each token once, found {line!r} again, first as id {vocabulary[token]}")
        vocabulary[token] = len(vocabulary)
    return vocabulary


class BeePieces:
    """The longest tokens of a vocabulary, from the left.

    Args:
        vocabulary: Id by token, with a real space and a real line's end.
    """

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.vocabulary = dict(vocabulary)
        self.special = frozenset(token for token in vocabulary if token.startswith("<") and token.endswith(">"))
        self._plain = self.vocabulary.keys() - self.special
        self._longest = max(map(len, vocabulary), default=1)

    def tokens(self, text: str) -> list[BeeToken]:
        """Cut a text; what the vocabulary lacks stands there as it is written.

        Raises:
            DataError: A bracket is open at the end, or within another one.
        """
        found: list[BeeToken] = []
        plain: list[tuple[str, int, int]] = []  # characters and where each is from: an escaped sign is from two
        at = 0
        while at < len(text):
            if text[at] != "<":
                plain.append((text[at], at, at + 1))
                at += 1
            elif text.startswith("<<", at):
                plain.append(("<", at, at + 2))
                at += 2
            else:
                end = text.find(">", at)
                inner = text.find("<", at + 1, end)
                if end < 0 or inner >= 0:
                    where = f"another one opens at {inner}" if end >= 0 else "it does not end"
                    raise DataError(
                        f"{text[:60]!r}: character {at} opens a special token, and {where}; write << for the sign itself"
                    )
                found += self._words(plain)
                found.append(BeeToken(text[at : end + 1], at, end + 1, True))
                plain, at = [], end + 1
        return found + self._words(plain)

    def _words(self, characters: Sequence[tuple[str, int, int]]) -> list[BeeToken]:
        """Cut characters into the longest tokens; neighbours that are in none become one unknown word."""
        text = "".join(character for character, _, _ in characters)
        found: list[BeeToken] = []
        at, unknown = 0, 0  # where the unknown word before `at` begins

        def add(start: int, end: int) -> None:
            if end > start:
                found.append(BeeToken(text[start:end], characters[start][1], characters[end - 1][2], False))

        while at < len(text):
            end = next((end for end in range(min(len(text), at + self._longest), at, -1) if text[at:end] in self._plain), at)
            if end == at:
                at += 1
                continue
            add(unknown, at)
            add(at, end)
            at = unknown = end
        add(unknown, at)
        return found

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text into tokens of the vocabulary alone; what tells numbered tokens apart is lost."""
        cut = self.tokens(text)
        names = (each.text if self._is_known(each) else base_token(each.text if each.is_special else "") for each in cut)
        known = (name if name in self.vocabulary else _UNKNOWN for name in names)
        return [Piece(name, each.start, each.end) for name, each in zip(known, cut, strict=True)]

    def _is_known(self, token: BeeToken) -> bool:
        return token.text in (self.vocabulary if token.is_special else self._plain)

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, without escapes."""
        return "".join(tokens)
