"""How the CPM families cut a text: jieba finds words, then a vocabulary file or a sentencepiece model cuts these into pieces.

jieba and sentencepiece are imported when they are first needed; `pip install 'modelzoo-hub[cpm]'` brings both.
"""

import importlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelzoo.data.piece_backend import Piece
from modelzoo.errors import DataError

__all__ = ["SentencePieceModel", "SentencePieces", "WordPieces", "read_lines", "read_vocabulary"]

_SPACE, _LINE = "\ufff2", "\ufff3"  # stand for a space and a line while jieba reads, as in ModelCenter's tokenizers
_SPACE_MARK, _LINE_MARK = "▂", "▃"
_LONGEST_WORD = 200


def _require(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"the tokenizers of CPM need {name}, which is not installed; pip install 'modelzoo-hub[cpm]'") from error


def _cutter(*, guess: bool) -> Callable[[str], Iterable[str]]:
    """Return jieba's cut in its precise mode; with `guess` also words that its dictionary lacks."""
    jieba = _require("jieba")
    jieba.setLogLevel(logging.WARNING)  # it reports each start of its dictionary
    return lambda text: jieba.cut(text, cut_all=False, HMM=guess)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a vocab.txt.

    Raises:
        DataError: The file is missing, not UTF-8, or empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        found = ", ".join(sorted(each.name for each in path.parent.iterdir())[:20]) or "an empty folder"
        raise DataError(f"{path.parent}: expected {path.name}, found {found}; copy the tokenizer files into the folder") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8, found byte {error.object[error.start]:#x} at {error.start}") from error
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path}: expected one token a line, found an empty file")
    return lines


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.txt: one token a line, its id the number of the line from 0.

    Raises:
        DataError: As `read_lines`.
    """
    return {line.strip(): number for number, line in enumerate(read_lines(path))}


class WordPieces:
    """Words of jieba cut into the longest tokens of a vocabulary, from the left; what has none is one unknown token a character.

    Args:
        vocabulary: Id by token.
        unknown: The unknown token.
        space: The token of a space.
        line: The token of a line's end.
        guess: Whether jieba may find words that its dictionary lacks.
        whole: Tokens that are found in a text before it is cut (CPM-Ant's special tokens).
        has_written_marks: Whether the written space and line tokens in a text mean a space and a line's end; else each is unknown.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        *,
        unknown: str,
        space: str,
        line: str,
        guess: bool = True,
        whole: Sequence[str] = (),
        has_written_marks: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._unknown = unknown
        self._marks = {" ": _SPACE, "\n": _LINE} | ({space: _SPACE, line: _LINE} if has_written_marks else {})
        self._tokens = {_SPACE: space, _LINE: line}
        self._hidden = frozenset() if has_written_marks else frozenset((space, line))
        self._longest = max(len(token) for token in vocabulary)
        self._cut = _cutter(guess=guess)
        whole = whole if has_written_marks else (*whole, space, line)
        splits = [*whole, *self._marks]
        self._pattern = re.compile("|".join(re.escape(each) for each in sorted(splits, key=len, reverse=True)))
        self._whole = frozenset(whole)

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text."""
        found: list[Piece] = []
        shortened, places = "", [0]  # the text with its marks as one character each; where each of its characters begins
        for part in re.split(f"({self._pattern.pattern})", text):
            if part in self._whole and part:
                found += self._words(shortened, places)
                token = part if self._has(part) else self._unknown
                found.append(Piece(token, places[-1], places[-1] + len(part)))
                shortened, places = "", [places[-1] + len(part)]
                continue
            characters = [self._marks[part]] if part in self._marks else list(part)
            width = len(part) if part in self._marks else 1
            for character in characters:
                shortened += character
                places.append(places[-1] + width)
        return found + self._words(shortened, places)

    def _words(self, text: str, places: Sequence[int]) -> list[Piece]:
        found, at = [], 0
        for word in self._cut(text):
            found += [Piece(token, places[at + start], places[at + end]) for token, start, end in self._longest_first(word)]
            at += len(word)
        return found

    def _longest_first(self, word: str) -> list[Piece]:
        if word in self._tokens:
            return [Piece(self._tokens[word], 0, 1)]
        if len(word) > _LONGEST_WORD:
            return [Piece(self._unknown, 0, len(word))]
        found, start = [], 0
        while start < len(word):
            end = min(len(word), start + self._longest)
            while end > start and not self._has(word[start:end]):
                end -= 1
            found.append(Piece(word[start:end], start, end) if end > start else Piece(self._unknown, start, start + 1))
            start = max(end, start + 1)
        return found

    def _has(self, token: str) -> bool:
        return token in self._vocabulary and token not in self._hidden

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        marks = {self._tokens[_SPACE]: " ", self._tokens[_LINE]: "\n"}
        return "".join(marks.get(token, token) for token in tokens)


class SentencePieceModel:
    """A sentencepiece model: pieces with the characters that they are from.

    Args:
        file: The model.

    Raises:
        DataError: It is missing or not a model.
    """

    def __init__(self, file: Path) -> None:
        module = _require("sentencepiece")
        self._model = module.SentencePieceProcessor()
        try:
            self._model.Load(str(file))
        except (OSError, RuntimeError) as error:
            raise DataError(f"{file}: expected a sentencepiece model, found: {error}") from error
        self.vocabulary = {self._model.IdToPiece(number): number for number in range(self._model.GetPieceSize())}

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text."""
        found = self._model.encode(text, return_type="offset_mapping")
        numbers = zip(found["ids"], found["offsets"], strict=True)
        return [Piece(self._model.IdToPiece(number), start, end) for number, (start, end) in numbers]

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return str(self._model.decode_pieces(list(tokens)))


class SentencePieces:
    """Words of jieba, joined by spaces and cut by a sentencepiece model; real spaces and lines have marks of their own (CPM-1).

    Args:
        file: The model.

    Raises:
        DataError: It is missing or not a model.
    """

    def __init__(self, file: Path) -> None:
        self._model = SentencePieceModel(file)
        self._cut = _cutter(guess=True)
        self.vocabulary = self._model.vocabulary

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text."""
        joined, places, at = "", [0], 0  # where each character of `joined` begins in the text
        for number, word in enumerate(self._cut(text)):
            if number:
                joined += " "
                places.append(at)
            for character in word:
                joined += {" ": _SPACE_MARK, "\n": _LINE_MARK}.get(character, character)
                at += 1
                places.append(at)
        pieces = []
        for token, start, end in self._model.pieces(joined):
            start += end > start and joined[start] == " "  # the joint is no character of the text
            pieces.append(Piece(token, places[start], places[end]))
        return pieces

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return self._model.text(tokens).replace(" ", "").replace(_SPACE_MARK, " ").replace(_LINE_MARK, "\n")
