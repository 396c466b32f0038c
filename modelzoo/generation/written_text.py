"""From token ids to text while they are written: whole characters only, and not past a stop string."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from modelzoo.data import Tokenizer

__all__ = ["Reader", "WordReader", "WrittenText", "find_stop", "text_after"]

_CONTEXT = 8  # prompt tokens that new ones are decoded with: enough to know whether a word goes on
_BROKEN = "\ufffd"  # what decoders write for the first bytes of a character whose last ones are still missing


class Reader(Protocol):
    """What turns ids into text: a tokenizer, or one for a single row."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""


class WordReader:
    """A tokenizer with words that one row brought along (CPM-Bee).

    Args:
        tokenizer: Of the model.
        words: Text by id.
    """

    def __init__(self, tokenizer: Tokenizer, words: Mapping[int, str]) -> None:
        self._tokenizer = tokenizer
        self._words = words

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        parts: list[str] = []
        run: list[int] = []
        for token_id in ids:
            if token_id in self._words:
                parts += [self._tokenizer.decode(run), self._words[token_id]]
                run = []
            else:
                run.append(token_id)
        return "".join([*parts, self._tokenizer.decode(run)])


def text_after(tokenizer: Reader, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text that `ids` add to a prompt, with the space before the first word where there is one.

    Tokenizers drop a leading space when they decode a word that stands alone, so the new tokens are decoded behind the prompt's
    last ones. Special tokens have no text.

    Args:
        tokenizer: Of the model.
        prompt: The prompt's ids; empty when the text stands alone, as a decoder's behind an encoder.
        ids: The new ones.
    """
    context = list(prompt[-_CONTEXT:])
    before = tokenizer.decode(context)
    whole = tokenizer.decode([*context, *ids])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(list(ids))


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop string in a text begins, or None."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return min(places, default=None)


class WrittenText:
    """One row's text as it grows.

    Args:
        tokenizer: Of the model.
        prompt: Ids that the text continues.
        stops: Texts that end it.
    """

    def __init__(self, tokenizer: Reader, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._said = ""
        self.text = ""
        self.is_stopped = False

    def add(self, token_id: int) -> str:
        """Take a token and return the text that is certain now and was not returned before; often empty.

        Held back are the first bytes of a character, and what may be the beginning of a stop string.
        """
        self._ids.append(token_id)
        self.text = text_after(self._tokenizer, self._prompt, self._ids)
        stop = find_stop(self.text, self._stops)
        if stop is not None:
            self.text, self.is_stopped = self.text[:stop], True
            return self._say(self.text)
        certain = self.text.rstrip(_BROKEN)
        return self._say(certain[: len(certain) - self._pending(certain)])

    def finish(self) -> str:
        """Return what was held back, once the row has ended."""
        return self._say(self.text)

    def _pending(self, text: str) -> int:
        """Return how many characters at the end may begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0

    def _say(self, text: str) -> str:
        """Return what `text` adds to what was said; a decoder that changed its mind about that adds nothing for now."""
        if not text.startswith(self._said):
            return ""
        piece = text[len(self._said) :]
        self._said = text
        return piece
