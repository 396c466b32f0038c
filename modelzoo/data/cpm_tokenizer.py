"""The tokenizers of the CPM families and of GLM-10B: which one a folder asks for, its vocabulary, special tokens and template."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from modelzoo.data.cpm_bee_pieces import BeePieces, read_bee_vocabulary
from modelzoo.data.cpm_pieces import SentencePieceModel, SentencePieces, WordPieces, read_vocabulary
from modelzoo.data.glm_pieces import GLM_ROLES, GlmPieces, glm_commands, glm_model_file
from modelzoo.data.piece_backend import Pieces, piece_backend
from modelzoo.data.special_tokens import read_json_object
from modelzoo.data.tokenizer_files import Backend
from modelzoo.errors import DataError

__all__ = ["NUM_SENTINELS", "CpmKind", "cpm_kind", "read_cpm_backend"]

CpmKind = Literal["cpm1", "cpm1-modelcenter", "cpm2", "cpmant", "cpmbee", "glm"]
"""CPM-1's sentencepiece model; ModelCenter's vocabulary for it; CPM-2's, with 190 sentinels; CPM-Ant's; CPM-Bee's; GLM's Chinese
sentencepiece model."""

_MODEL_FILES = ("spiece.model", "chinese_vocab.model")
_CLASSES: dict[str, CpmKind] = {
    "CpmTokenizer": "cpm1", "CPM1Tokenizer": "cpm1-modelcenter", "CPM2Tokenizer": "cpm2", "CpmAntTokenizer": "cpmant",
    "CPMAntTokenizer": "cpmant", "CpmBeeTokenizer": "cpmbee", "CPMBeeTokenizer": "cpmbee", "GLMChineseTokenizer": "glm",
    "GLMTokenizer": "glm",
}  # fmt: skip
_MODEL_TYPES: dict[str, CpmKind] = {
    "cpm1": "cpm1-modelcenter", "cpm2": "cpm2", "cpm3": "cpmant", "cpmant": "cpmant", "cpmbee": "cpmbee", "glm-10b": "glm",
}  # fmt: skip
_ROLES: dict[CpmKind, dict[str, str]] = {
    "cpm1": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpm1-modelcenter": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpm2": {"bos_token": "<s>", "eos_token": "<eod>", "sep_token": "<sep>", "mask_token": "<mask>"},
    "cpmant": {"bos_token": "<s>", "eos_token": "</s>"},
    "cpmbee": {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"},
}
_MARKS: dict[CpmKind, tuple[str, str]] = {"cpm1-modelcenter": ("</_>", "</n>"), "cpm2": ("▂", "▃"), "cpmant": ("</_>", "</n>")}
_ANT_TOKENS = ("<d>", "</d>", "<s>", "</s>", "<pad>", "<unk>")
NUM_SENTINELS = 190
"""Tokens <s_0>, <s_1>, ... of CPM-2, each for a span that its decoder writes."""


def _backend(kind: CpmKind, vocabulary: dict[str, int], pieces: Pieces) -> Backend:
    """Return the backend of a vocabulary: no special tokens around a text, but <s> before CPM-Ant's and CPM-Bee's."""
    begins = ("<s>",) if kind in ("cpmant", "cpmbee") else ()
    return piece_backend(vocabulary, pieces, {"unk_token": "<unk>", "pad_token": "<pad>", **_ROLES[kind]}, before=begins)


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
    """Build the tokenizer of a CPM family or of GLM-10B.

    Args:
        folder: With vocab.txt; for "cpm1" with spiece.model or chinese_vocab.model, for "glm" with one sentencepiece model.
        kind: Which family's rules.

    Raises:
        DataError: A file is missing or broken, lacks a token that the family needs, or jieba or sentencepiece is not installed.
    """
    if kind == "cpmbee":
        bee = BeePieces(read_bee_vocabulary(folder / "vocab.txt"))
        _require_tokens(folder / "vocab.txt", kind, bee.vocabulary, ["<unk>", "<pad>", "<ans>", "<root>", *_ROLES[kind].values()])
        return _backend(kind, bee.vocabulary, bee)
    if kind == "glm":
        model = SentencePieceModel(glm_model_file(folder))
        glm = GlmPieces(model, glm_commands(folder, len(model.vocabulary)))
        return piece_backend(glm.vocabulary, glm, GLM_ROLES, before=("[CLS]",), after=("<|endoftext|>",), special=glm.commands)
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
