"""The tokenizer: texts to ids and back, with the truncation policy stated and its losses counted."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import pre_tokenizers

from modelzoo.data.cpm_tokenizer import cpm_kind, read_cpm_backend
from modelzoo.data.encoding import Encoding, Truncation, check_text
from modelzoo.data.tokenizer_files import Backend, read_backend, with_config_ids
from modelzoo.errors import DataError

__all__ = ["Tokenizer", "load_tokenizer"]


_CHUNK = 4096  # texts that are handed to the Rust side at once


class Tokenizer:
    """Encodes texts to the same ids as transformers' tokenizer of the same folder.

    It does not pad: `collate` does. It keeps no state between calls; two threads must not encode at the same time.

    Args:
        backend: The tokenizer and its facts, as `read_backend` returns them.
        folder: Where the files are; None for a tokenizer that was built in memory.
    """

    def __init__(self, backend: Backend, folder: Path | None = None) -> None:
        self.folder = folder
        self.has_token_types = backend.has_token_types
        self.model_max_length = backend.max_length
        self.truncation_side = backend.truncation_side
        self._roles = backend.token_ids
        self.bos_id = backend.token_ids.get("bos_token")
        self.eos_id = backend.token_ids.get("eos_token")
        self.unk_id = backend.token_ids.get("unk_token")
        self.cls_id = backend.token_ids.get("cls_token")
        self.sep_id = backend.token_ids.get("sep_token")
        self.pad_id = backend.token_ids.get("pad_token")
        self.mask_id = backend.token_ids.get("mask_token")
        self._backend: RustTokenizer = backend.tokenizer
        self._words_backend: RustTokenizer | None = None

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added ones included: transformers' `len(tokenizer)`."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens with a role (classification, separator, padding, mask, unknown, begin, end)."""
        ids = (self.bos_id, self.eos_id, self.unk_id, self.cls_id, self.sep_id, self.pad_id, self.mask_id)
        return frozenset(token_id for token_id in ids if token_id is not None)

    @property
    def special_texts(self) -> dict[str, str]:
        """The text of each token with a role, by the name of the role, as bos_token."""
        return {name: self.tokens([token_id])[0] for name, token_id in self._roles.items() if token_id is not None}

    @property
    def end_ids(self) -> frozenset[int]:
        """The special tokens, those without a role included: what can end a text."""
        added = self._backend.get_added_tokens_decoder()
        return self.special_ids | {token_id for token_id, token in added.items() if token.special}

    @property
    def begins_texts(self) -> bool:
        """Whether `encode` puts a begin token before a text."""
        return self.bos_id is not None and self.encode([""])[0].input_ids[:1] == [self.bos_id]

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        kind = type(self._backend.model).__name__
        return f"Tokenizer({kind}, vocab_size={self.vocab_size}, max_length={self.model_max_length}, folder={self.folder})"

    def get_vocab(self) -> dict[str, int]:
        """Return id by token, added tokens included."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def num_special_tokens(self, *, pair: bool = False) -> int:
        """Return how many special tokens stand around one text or a pair."""
        return int(self._backend.num_special_tokens_to_add(pair))

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        *,
        offsets: bool = False,
    ) -> list[Encoding]:
        """Encode texts, or pairs of texts, with their special tokens.

        Args:
            texts: First texts.
            pairs: Second texts, as many; None for single texts.
            max_length: Limit in tokens, special tokens included; None for no limit.
            truncation: Which text is cut when a row is longer: the longer one token by token, the first, the second, or none
                ("error").
            offsets: True also fills `offsets` and `sequence_ids`.

        Raises:
            DataError: If a row is no text or too long for the truncation asked for; it names the row, counted from 1.
        """
        if pairs is not None and len(pairs) != len(texts):
            raise DataError(f"expected as many second texts as first ones, found {len(pairs)} and {len(texts)}")
        inputs: list[Any] = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        return self._encode(self._backend, inputs, max_length, truncation, details=offsets, is_words=False)

    def encode_parts(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts without special tokens around them; those that a text itself holds are recognised.

        Raises:
            DataError: If a row is no text; it names the row, counted from 1.
        """
        encoded = self._run(self._backend, list(texts), details=False, is_words=False, adds_special=False)
        return [self._convert(item, row=row, details=False) for row, item in enumerate(encoded)]

    def encode_words(
        self, words: Sequence[Sequence[str]], max_length: int | None = None, truncation: Truncation = "longest_first"
    ) -> list[Encoding]:
        """Encode lists of words; `word_ids` of the result tells which word each token is from.

        Byte-level tokenizers (RoBERTa, GPT-2) get a space before every word, as transformers requires with
        `add_prefix_space=True`: without it, words are glued together.

        Raises:
            DataError: As in `encode`.
        """
        inputs = [list(row) for row in words]
        return self._encode(self._word_backend(), inputs, max_length, truncation, details=True, is_words=True)

    def windows(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int, stride: int) -> list[Encoding]:
        """Encode each text, or each pair's second text, as windows that overlap and together cover every token.

        Args:
            texts: Texts to cut into windows, or the first texts (questions), which are repeated whole in each window.
            pairs: The texts to cut, if there are first ones.
            max_length: Tokens of a window, special tokens included.
            stride: Tokens that neighbouring windows share.

        Returns:
            The windows in order, `row` telling the text, with `offsets` and `sequence_ids`.

        Raises:
            DataError: If a first text leaves no room for a window, or stride is not smaller than the room.
        """
        inputs: list[Any] = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        self._check_room(inputs, max_length, stride)
        self._backend.enable_truncation(
            max_length, stride=stride, strategy="only_first" if pairs is None else "only_second", direction=self.truncation_side
        )
        result: list[Encoding] = []
        try:
            for row, first in enumerate(self._run(self._backend, inputs, details=True, is_words=False)):
                result += [self._convert(window, row=row, details=True) for window in (first, *first.overflowing)]
        finally:
            self._backend.no_truncation()
        return result

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's own text of each id.

        Raises:
            DataError: If the vocabulary has no such id.
        """
        result = []
        for position, token_id in enumerate(ids):
            token = self._backend.id_to_token(token_id) if token_id >= 0 else None
            if token is None:
                raise DataError(f"position {position}: id {token_id} is not in the vocabulary of {self.vocab_size} tokens")
            result.append(token)
        return result

    def _encode(
        self,
        backend: RustTokenizer,
        inputs: list[Any],
        max_length: int | None,
        truncation: Truncation,
        *,
        details: bool,
        is_words: bool,
    ) -> list[Encoding]:
        """Encode everything whole, then again with truncation what is too long, so that the cut is known exactly."""
        encoded = self._run(backend, inputs, details=details, is_words=is_words)
        result = [self._convert(item, row=row, details=details, is_words=is_words) for row, item in enumerate(encoded)]
        lengths = [len(item.input_ids) for item in result]
        long = [] if max_length is None else [row for row, length in enumerate(lengths) if length > max_length]
        if not long or max_length is None:
            return result
        self._check_truncation(inputs, lengths, long, max_length, truncation)
        backend.enable_truncation(max_length, strategy=truncation, direction=self.truncation_side)
        try:
            for row, item in zip(long, self._truncate(backend, inputs, long, lengths, is_words), strict=True):
                cut = lengths[row] - len(item)
                result[row] = self._convert(item, row=row, truncated=cut, details=details, is_words=is_words)
        finally:
            backend.no_truncation()
        return result

    def _check_truncation(
        self, inputs: list[Any], lengths: list[int], long: list[int], max_length: int, truncation: Truncation
    ) -> None:
        row = long[0]
        what = f"row {row + 1} has {lengths[row]} tokens, limit {max_length}"
        if truncation == "error":
            more = f"; {len(long)} rows are too long" if len(long) > 1 else ""
            raise DataError(f"{what}{more}; shorten the text, raise max_length, or set truncation=longest_first")
        is_pair = isinstance(inputs[row], tuple)
        if truncation == "only_second" and not is_pair:
            raise DataError(f"{what}, and truncation=only_second cuts the second text, but there is one text; use longest_first")
        special = self.num_special_tokens(pair=is_pair)
        if max_length <= special:
            raise DataError(f"max_length={max_length} leaves no room for text beside {special} special tokens; raise max_length")

    def _truncate(
        self, backend: RustTokenizer, inputs: list[Any], long: list[int], lengths: list[int], is_words: bool
    ) -> Iterator[Any]:
        """Encode the rows that are too long; when the Rust side refuses one of them, find out which."""
        for start in range(0, len(long), _CHUNK):
            chunk = long[start : start + _CHUNK]
            try:
                yield from backend.encode_batch([inputs[row] for row in chunk], is_pretokenized=is_words)
            except Exception as refusal:  # the Rust side raises bare Exception, without the row
                settings = backend.truncation or {}
                for row in chunk:
                    try:
                        backend.encode_batch([inputs[row]], is_pretokenized=is_words)
                    except Exception as error:
                        raise DataError(
                            f"row {row + 1} has {lengths[row]} tokens, limit {settings.get('max_length')}: the text that "
                            f"truncation={settings.get('strategy')} may cut is too short for that; use longest_first or raise "
                            f"max_length"
                        ) from error
                raise DataError(f"the tokenizer refused the texts: {refusal}") from refusal

    def _run(
        self, backend: RustTokenizer, inputs: list[Any], *, details: bool, is_words: bool, adds_special: bool = True
    ) -> Iterator[Any]:
        """Encode in chunks: the Rust side's results hold every token's text and take 100 times the ids' memory."""
        encode = backend.encode_batch if details else backend.encode_batch_fast
        for start in range(0, len(inputs), _CHUNK):
            chunk = inputs[start : start + _CHUNK]
            try:
                yield from encode(chunk, is_pretokenized=is_words, add_special_tokens=adds_special)
            except (TypeError, UnicodeEncodeError) as error:
                for row, item in enumerate(chunk, start=start):
                    for text in item if isinstance(item, list | tuple) else (item,):
                        check_text(text, row)
                raise DataError(f"the tokenizer refused the texts: {error}") from error

    def _convert(self, item: Any, *, row: int, details: bool, truncated: int = 0, is_words: bool = False) -> Encoding:
        return Encoding(
            input_ids=item.ids,
            token_type_ids=item.type_ids if self.has_token_types else None,
            offsets=item.offsets if details else None,
            sequence_ids=item.sequence_ids if details else None,
            word_ids=item.word_ids if is_words else None,
            truncated=truncated,
            row=row,
        )

    def _check_room(self, inputs: list[Any], max_length: int, stride: int) -> None:
        """Check that each window takes up new tokens."""
        is_pair = bool(inputs) and isinstance(inputs[0], tuple)
        special = self.num_special_tokens(pair=is_pair)
        firsts = self._first_lengths(inputs) if is_pair else iter([0])
        for row, first in enumerate(firsts):
            room = max_length - special - first
            if room <= stride:
                raise DataError(
                    f"row {row + 1}: max_length={max_length} leaves {max(room, 0)} tokens of room for a window beside "
                    f"{special} special tokens and {first} tokens of the first text, but stride={stride} of them repeat; "
                    f"raise max_length"
                )

    def _first_lengths(self, inputs: list[Any]) -> Iterator[int]:
        for encoded in self._run(self._backend, [first for first, _ in inputs], details=False, is_words=False):
            yield len(encoded) - self.num_special_tokens()

    def _word_backend(self) -> RustTokenizer:
        """Return the tokenizer for lists of words: a byte-level one needs a space before each word."""
        if self._words_backend is None:
            splitting = self._backend.pre_tokenizer
            if isinstance(splitting, pre_tokenizers.ByteLevel) and not splitting.add_prefix_space:
                self._words_backend = RustTokenizer.from_str(self._backend.to_str())
                self._words_backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
            else:
                self._words_backend = self._backend
        return self._words_backend


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face folder.

    Reads tokenizer.json, or vocab.txt (BERT), or vocab.json with merges.txt (RoBERTa, GPT-2), with the settings of
    tokenizer_config.json; the files of the CPM families; sentencepiece and other families are left to transformers.

    Args:
        folder: A local folder.

    Raises:
        DataError: If a file is missing or broken; it names the file.
    """
    path = Path(folder)
    kind = cpm_kind(path)
    backend = read_backend(path) if kind is None else read_cpm_backend(path, kind)
    return Tokenizer(with_config_ids(backend, path), path)
