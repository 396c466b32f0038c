"""The tokenizers of CPM-1, CPM-2 and CPM-Ant, as backends of `Tokenizer`, with pairs, truncation, windows and offsets.

The pieces of a text come from `cpm_pieces`; ids, templates and truncation are those of a `tokenizers.Tokenizer` that is given the
pieces as words.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, processors

from modelzoo.data.cpm_pieces import Piece, SentencePieces, WordPieces, read_vocabulary
from modelzoo.data.special_tokens import read_json_object
from modelzoo.data.tokenizer_files import Backend
from modelzoo.errors import DataError

__all__ = ["NUM_SENTINELS", "CpmKind", "cpm_kind", "read_cpm_backend"]

CpmKind = Literal["cpm1", "cpm1-modelcenter", "cpm2", "cpmant"]
"""CPM-1's sentencepiece model; ModelCenter's vocabulary for it; CPM-2's, with 190 sentinels; CPM-Ant's."""

_MODEL_FILES = ("spiece.model", "chinese_vocab.model")
_CLASSES: dict[str, CpmKind] = {
    "CpmTokenizer": "cpm1", "CPM1Tokenizer": "cpm1-modelcenter", "CPM2Tokenizer": "cpm2", "CpmAntTokenizer": "cpmant",
    "CPMAntTokenizer": "cpmant",
}  # fmt: skip
_MODEL_TYPES: dict[str, CpmKind] = {"cpm1": "cpm1-modelcenter", "cpm2": "cpm2", "cpm3": "cpmant", "cpmant": "cpmant"}
_ROLES: dict[CpmKind, dict[str, str]] = {
    "cpm1": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpm1-modelcenter": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpm2": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpmant": {"bos_token": "<s>", "eos_token": "</s>"},
}
_MARKS: dict[CpmKind, tuple[str, str]] = {"cpm1-modelcenter": ("</_>", "</n>"), "cpm2": ("▂", "▃"), "cpmant": ("</_>", "</n>")}
_ANT_TOKENS = ("<d>", "</d>", "<s>", "</s>", "<pad>", "<unk>")
NUM_SENTINELS = 190
"""Tokens <s_0>, <s_1>, ... of CPM-2, each for a span that its decoder writes."""


class _Pieces(Protocol):
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

    def __init__(self, tokenizer: RustTokenizer, pieces: _Pieces, special_ids: frozenset[int]) -> None:
        self._tokenizer, self._pieces, self._special_ids = tokenizer, pieces, special_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, inputs: Sequence[Any], is_pretokenized: bool = False) -> list[_Encoded]:
        """Encode texts, pairs of texts, or lists of words."""
        cut = [self._cut(item, is_words=is_pretokenized) for item in inputs]
        words = [tuple(tokens) if len(tokens) == 2 else tokens[0] for tokens, _, _ in cut]
        encoded = self._tokenizer.encode_batch(words, is_pretokenized=True)
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


def _backend(kind: CpmKind, vocabulary: dict[str, int], pieces: _Pieces) -> Backend:
    """Return the backend of a vocabulary: no special tokens around a text, but <s> before CPM-Ant's."""
    tokenizer = RustTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    begin = "<s>:0 " if kind == "cpmant" else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A:0",
        pair=f"{begin}$A:0 {begin}$B:0",
        special_tokens=[("<s>", vocabulary["<s>"])] if begin else [],
    )
    ids = {role: vocabulary.get(token) for role, token in {"unk_token": "<unk>", "pad_token": "<pad>", **_ROLES[kind]}.items()}
    special = frozenset(token_id for token_id in ids.values() if token_id is not None)
    return Backend(
        tokenizer=_PieceBackend(tokenizer, pieces, special),  # type: ignore[arg-type]  # it answers as a Tokenizer does
        token_ids=ids,
        has_token_types=False,
        max_length=None,
        truncation_side="right",
    )


def cpm_kind(folder: Path) -> CpmKind | None:
    """Return which CPM tokenizer a folder's configs ask for, or None for none of them."""
    config, settings = read_json_object(folder / "config.json"), read_json_object(folder / "tokenizer_config.json")
    name = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    kind = _CLASSES.get(name) or (None if name else _MODEL_TYPES.get(str(config.get("model_type"))))
    if kind == "cpm1-modelcenter" and not (folder / "vocab.txt").is_file() and _model_file(folder) is not None:
        return "cpm1"
    return kind


def _model_file(folder: Path) -> Path | None:
    return next((folder / name for name in _MODEL_FILES if (folder / name).is_file()), None)


def read_cpm_backend(folder: Path, kind: CpmKind) -> Backend:
    """Build the tokenizer of a CPM family.

    Args:
        folder: With vocab.txt, or for "cpm1" with spiece.model or chinese_vocab.model.
        kind: Which family's rules.

    Raises:
        DataError: A file is missing or broken, lacks a token that the family needs, or jieba or sentencepiece is not installed.
    """
    if kind == "cpm1":
        file = _model_file(folder)
        if file is None:
            found = ", ".join(sorted(each.name for each in folder.iterdir())[:20]) or "an empty folder"
            raise DataError(
                f"{folder}: expected {' or '.join(_MODEL_FILES)}, found {found}; copy the tokenizer files into the folder"
            )
        sentences = SentencePieces(file)
        _require_tokens(file, kind, sentences.vocabulary, ("<unk>",))
        return _backend(kind, sentences.vocabulary, sentences)
    vocabulary = read_vocabulary(folder / "vocab.txt")
    space, line = _MARKS[kind]
    needed = ["<unk>", "<pad>", space, line, *_ROLES[kind].values()]
    needed += [f"<s_{number}>" for number in range(NUM_SENTINELS)] if kind == "cpm2" else []
    is_ant = kind == "cpmant"
    needed += _ANT_TOKENS if is_ant else ()
    _require_tokens(folder / "vocab.txt", kind, vocabulary, needed)
    pieces = WordPieces(
        vocabulary,
        unknown="<unk>",
        space=space,
        line=line,
        guess=not is_ant,
        whole=_ANT_TOKENS if is_ant else (),
        has_written_marks=not is_ant,
    )
    return _backend(kind, vocabulary, pieces)


def _require_tokens(file: Path, kind: CpmKind, vocabulary: dict[str, int], needed: Sequence[str]) -> None:
    missing = [token for token in needed if token not in vocabulary]
    if missing:
        raise DataError(f"{file}: expected the tokens of {kind}, found none of these: {', '.join(missing[:5])}")
