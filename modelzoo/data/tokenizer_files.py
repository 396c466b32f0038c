"""From a folder's tokenizer files to a `tokenizers.Tokenizer`, without importing transformers.

Which files are used, and how, follows transformers 5.24: a folder whose class is BertTokenizer, RobertaTokenizer or
GPT2Tokenizer is built from its vocabulary and the settings in tokenizer_config.json (the pipeline inside tokenizer.json is not
used then, only its vocabulary); a folder with a generic class is taken from tokenizer.json as it stands; all others are left to
transformers.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from modelzoo.data.special_tokens import SpecialTokens, add_tokens, read_json_object, read_special_tokens
from modelzoo.errors import DataError

__all__ = ["Backend", "read_backend", "with_config_ids"]

Kind = Literal["bert", "roberta", "gpt2", "generic", "transformers"]

_CLASS_KINDS: dict[str, Kind] = {"BertTokenizer": "bert", "RobertaTokenizer": "roberta", "GPT2Tokenizer": "gpt2"}
_MODEL_KINDS: dict[str, Kind] = {"bert": "bert", "electra": "bert", "distilbert": "bert", "roberta": "roberta", "gpt2": "gpt2"}
_GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
_MODEL_OF_KIND = {"bert": "WordPiece", "roberta": "BPE", "gpt2": "BPE"}
_DEFAULT_TOKENS: dict[Kind, dict[str, str]] = {
    "bert": {
        "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
    },
    "roberta": {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
        "cls_token": "<s>", "mask_token": "<mask>",
    },
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "generic": {},
}  # fmt: skip
_LONGEST_CAUSE = 240
_SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.model")
_SENTENCEPIECE_READERS = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
"""What transformers reads such a file with: package to module."""
# Roles that a bare tokenizer.json does not name; the text is looked up in its vocabulary.
_USUAL_TOKENS = {
    "unk_token": ("[UNK]", "<unk>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """A ready `tokenizers.Tokenizer` and what the wrapper needs beside it."""

    tokenizer: Tokenizer
    token_ids: dict[str, int | None]
    """Id by role (`cls_token`, ...); None where the tokenizer has no such token."""
    has_token_types: bool
    """True if the model wants token type ids from this tokenizer."""
    max_length: int | None
    """Tokens that the tokenizer's config allows; None if it sets no limit."""
    truncation_side: str
    """"right" or "left": the side that loses tokens."""


def read_backend(folder: Path) -> Backend:
    """Build the tokenizer of a folder.

    Raises:
        DataError: If the folder or a file of it is missing or broken, or no tokenizer can be built from it.
    """
    if not folder.is_dir():
        found = "a file" if folder.is_file() else "nothing"
        raise DataError(f"{folder}: expected a folder with tokenizer files, found {found}")
    config = read_json_object(folder / "tokenizer_config.json")
    file = read_json_object(folder / "tokenizer.json")
    kind: Kind | None = None
    try:
        kind = _kind(folder, config, file)
        return _from_transformers(folder) if kind == "transformers" else _from_files(folder, kind, config, file)
    except DataError:
        raise
    except Exception as error:  # the Rust side raises bare Exception for malformed files
        found = str(error) or type(error).__name__
        raise DataError(f"{folder}: expected {kind or 'readable'} tokenizer files, found: {found}") from error


def _from_files(folder: Path, kind: Kind, config: Mapping[str, Any], file: Mapping[str, Any]) -> Backend:
    tokenizer = _plain_tokenizer(folder, kind, config, file)
    tokens = read_special_tokens(folder, config, _DEFAULT_TOKENS[kind])
    add_tokens(tokenizer, tokens)
    _set_post_processor(tokenizer, kind, config, tokens)
    direction = (file.get("truncation") or {}).get("direction", "right").lower()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Backend(
        tokenizer=tokenizer,
        token_ids=_token_ids(tokenizer, tokens, guess=kind == "generic"),
        has_token_types="token_type_ids" in config.get("model_input_names", ["token_type_ids"] if kind == "bert" else []),
        max_length=_max_length(config.get("model_max_length", config.get("max_len"))),
        truncation_side=str(config.get("truncation_side", direction)),
    )


def with_config_ids(backend: Backend, folder: Path) -> Backend:
    """Return a backend with the begin and end tokens of config.json, where the tokenizer's own files name none.

    Args:
        backend: Of the folder.
        folder: Of the model.

    Raises:
        DataError: If config.json is broken.
    """
    config = read_json_object(folder / "config.json")
    ids = dict(backend.token_ids)
    for name in ("bos_token", "eos_token"):
        token_id = config.get(f"{name}_id")
        if ids.get(name) is None and isinstance(token_id, int) and backend.tokenizer.id_to_token(token_id) is not None:
            ids[name] = token_id
    return replace(backend, token_ids=ids)


def _kind(folder: Path, config: Mapping[str, Any], file: Mapping[str, Any]) -> Kind:
    """Decide how the folder is read, as transformers' AutoTokenizer does."""
    model_config = read_json_object(folder / "config.json")
    class_name = str(config.get("tokenizer_class") or model_config.get("tokenizer_class") or "")
    class_name = "TokenizersBackend" if class_name == "PreTrainedTokenizerFast" else class_name.removesuffix("Fast")
    model_type = str(model_config.get("model_type", ""))
    if class_name in _CLASS_KINDS:
        kind = _CLASS_KINDS[class_name]
    elif class_name in _GENERIC_CLASSES:
        kind = "generic" if file else _MODEL_KINDS.get(model_type) or _kind_of_files(folder)
    elif class_name or (model_type and model_type not in _MODEL_KINDS):
        return "transformers"
    elif model_type:
        kind = _MODEL_KINDS[model_type]
    else:
        kind = "generic" if file else _kind_of_files(folder)
    expected = _MODEL_OF_KIND.get(kind)
    if file and expected and (file.get("model") or {}).get("type", expected) != expected:
        return "transformers"
    return kind


def _kind_of_files(folder: Path) -> Kind:
    """Decide by the vocabulary files alone; a folder without any is refused."""
    if (folder / "vocab.txt").is_file():
        return "bert"
    if (folder / "vocab.json").is_file():
        vocab = read_json_object(folder / "vocab.json")
        return "roberta" if "<s>" in vocab and "</s>" in vocab else "gpt2"
    if _has_any(folder, _SENTENCEPIECE_FILES):
        return "transformers"
    raise _no_files(folder, "tokenizer.json, vocab.txt, or vocab.json with merges.txt")


def _plain_tokenizer(folder: Path, kind: Kind, config: Mapping[str, Any], file: Mapping[str, Any]) -> Tokenizer:
    """Build normalizer, splitting, model and decoder; special tokens and the template come later."""
    if kind == "generic":
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    if kind == "bert":
        unk_token = str(_text(config.get("unk_token")) or "[UNK]")
        tokenizer = Tokenizer(models.WordPiece(_word_pieces(folder, file, unk_token), unk_token=unk_token))
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
            strip_accents=config.get("strip_accents"),
            lowercase=bool(config.get("do_lower_case", True)),
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        return tokenizer
    vocab, merges = _byte_pairs(folder, file)
    model = models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word_pieces(folder: Path, file: Mapping[str, Any], unk_token: str) -> dict[str, int]:
    path = folder / ("tokenizer.json" if file else "vocab.txt")
    if file:
        vocab: dict[str, int] = dict(file["model"]["vocab"])
    elif path.is_file():
        vocab = models.WordPiece.read_file(str(path))
    else:
        raise _no_files(folder, "tokenizer.json or vocab.txt")
    if unk_token not in vocab:
        raise DataError(f"{path}: expected the unknown token {unk_token!r} in the vocabulary, found {len(vocab)} tokens without it")
    return vocab


def _byte_pairs(folder: Path, file: Mapping[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    if file:
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in file["model"]["merges"])
        return dict(file["model"]["vocab"]), [(str(first), str(second)) for first, second in pairs]
    missing = [name for name in ("vocab.json", "merges.txt") if not (folder / name).is_file()]
    if missing:
        raise _no_files(folder, f"tokenizer.json, or vocab.json with merges.txt (missing: {', '.join(missing)})")
    vocab, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    return vocab, merges


def _set_post_processor(tokenizer: Tokenizer, kind: Kind, config: Mapping[str, Any], tokens: SpecialTokens) -> None:
    """Set the template that puts the special tokens around one text or a pair."""
    if kind in ("bert", "roberta"):
        cls, sep = _token_and_id(tokenizer, tokens, "cls_token"), _token_and_id(tokenizer, tokens, "sep_token")
        tokenizer.post_processor = (
            processors.TemplateProcessing(
                single=f"{cls[0]}:0 $A:0 {sep[0]}:0",
                pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
                special_tokens=[cls, sep],
            )
            if kind == "bert"
            else processors.RobertaProcessing(
                sep, cls, bool(config.get("trim_offsets", True)), bool(config.get("add_prefix_space", False))
            )
        )
    elif tokenizer.post_processor is None:
        # Read from the config only where no tokenizer.json exists, as in transformers.
        names = [name for name in ("bos_token", "eos_token") if kind == "gpt2" and config.get(f"add_{name}")]
        around = {name: _token_and_id(tokenizer, tokens, name) for name in names}
        bos, eos = (around[name][0] if name in around else None for name in ("bos_token", "eos_token"))
        single = " ".join(filter(None, (bos and f"{bos}:0", "$A:0", eos and f"{eos}:0")))
        second = " ".join(filter(None, (bos and f"{bos}:1", "$B:1", eos and f"{eos}:1")))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=f"{single} {second}", special_tokens=list(around.values())
        )


def _token_and_id(tokenizer: Tokenizer, tokens: SpecialTokens, name: str) -> tuple[str, int]:
    text = tokens.text(name)
    token_id = None if text is None else tokenizer.token_to_id(text)
    if text is None or token_id is None:
        raise DataError(f"tokenizer_config.json: {name}: expected a token of the vocabulary, found {text!r}")
    return text, token_id


def _token_ids(tokenizer: Tokenizer, tokens: SpecialTokens, *, guess: bool) -> dict[str, int | None]:
    ids: dict[str, int | None] = {}
    for name in ("bos_token", "eos_token", *_USUAL_TOKENS):
        text = tokens.text(name)
        ids[name] = None if text is None else tokenizer.token_to_id(text)
        if ids[name] is None and guess:
            known = (tokenizer.token_to_id(usual) for usual in _USUAL_TOKENS.get(name, ()))
            ids[name] = next((token_id for token_id in known if token_id is not None), None)
    return ids


def _from_transformers(folder: Path) -> Backend:
    """Let transformers build the tokenizer (sentencepiece and other families); this import takes seconds."""
    if not any(_may_hold_tokens(path.name) for path in folder.iterdir()):
        raise _no_files(folder, "tokenizer.json, or a sentencepiece model such as tokenizer.model")
    from transformers import AutoTokenizer

    logging.getLogger(__name__).info("reading %s through transformers", folder)
    try:
        slow = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # anything may come out of a foreign folder; the cause stays attached
        lacking = [name for name, module in _SENTENCEPIECE_READERS.items() if not _is_installed(module)]
        needs_readers = bool(lacking) and _has_any(folder, _SENTENCEPIECE_FILES)
        action = (
            f"pip install {' '.join(lacking)}"
            if needs_readers
            else "copy tokenizer.json of the model that it is from into the folder"
        )
        supported = ", ".join(sorted(_CLASS_KINDS))
        found = " ".join(str(error).split())[:_LONGEST_CAUSE]  # lines of a foreign message would read as several messages
        raise DataError(
            f"{folder}: expected {supported}, a tokenizer.json, or what transformers reads; found: {found}; {action}"
        ) from error
    tokenizer = getattr(slow, "backend_tokenizer", None)
    if tokenizer is None:
        raise DataError(f"{folder}: {type(slow).__name__} has no tokenizer.json form; convert it with its own tools first")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Backend(
        tokenizer=tokenizer,
        token_ids={name: getattr(slow, f"{name}_id") for name in ("bos_token", "eos_token", *_USUAL_TOKENS)},
        has_token_types="token_type_ids" in slow.model_input_names,
        max_length=_max_length(slow.model_max_length),
        truncation_side=str(slow.truncation_side),
    )


def _max_length(value: object) -> int | None:
    """Return the limit in tokens; transformers writes 1e30 for "none"."""
    return int(value) if isinstance(value, int | float) and 0 < value < 1e9 else None


def _text(value: object) -> object:
    return value.get("content") if isinstance(value, dict) else value


def _may_hold_tokens(name: str) -> bool:
    """Whether a file of this name may hold a vocabulary: from its config alone transformers builds a tokenizer without one."""
    is_named = name.startswith(("tokenizer", "vocab", "merges")) or name.endswith((".model", ".tiktoken", ".bpe"))
    return is_named and name != "tokenizer_config.json"


def _is_installed(module: str) -> bool:
    """Return whether a module can be imported; a namespace such as google may be there without it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)


def _no_files(folder: Path, expected: str) -> DataError:
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "an empty folder"
    return DataError(f"{folder}: expected {expected}, found {found}; copy the tokenizer files into the model's folder")
