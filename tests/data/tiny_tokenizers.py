"""Small tokenizer folders, written by hand, in the forms that Hugging Face folders have."""

import json
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["the", "a", "cat", "sat", "on", "mat", "dog", "ran", "fast", "is", "it", "true", "false"]
PIECES += ["who", "what", "where", "does", "naive", "cafe"]

NASTY_TEXTS = [
    "the cat sat on the mat",
    "",
    "   ",
    "Naïve CAFÉ e\u0301 Ångström",
    "🤗 emoji 👩‍👩‍👧 \u200b zero width",
    "中文 mixed 日本語 한국어",
    "x" * 300,
    "supercalifragilistic" * 8,
    "a [SEP] b [MASK] [mask] c <mask> d <s> e </s> <pad> [PAD]",
    "  two  spaces\t\n tab\r\n end ",
    "\x00\x07 control \ufffd",
    "don't we'll 1,234.56!? ... --- ``quoted''",
    "ＦＵＬＬ　ｗｉｄｔｈ ﬁ İstanbul ß ﷽",  # noqa: RUF001 - full-width letters are the point
    '" line \u2028 separator',
]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def bert_folder(folder: Path, *, config: dict[str, Any] | None = None, model_type: str | None = "bert") -> Path:
    """A WordPiece vocabulary of letters, a few words and Chinese characters."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    more = [*"ABCé中文日,.!?'-[]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *PIECES, *more]) + "\n", encoding="utf-8")
    if config is not None:
        write_json(folder / "tokenizer_config.json", config)
    if model_type is not None:
        write_json(folder / "config.json", {"model_type": model_type})
    return folder


def byte_level_folder(folder: Path, *, config: dict[str, Any] | None = None, model_type: str | None = "roberta") -> Path:
    """A byte-level vocabulary with a few merges and the special tokens of RoBERTa or GPT-2."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("ca", "t"), ("Ġ", "cat"), ("Ġ", "s"), ("a", "t"), ("Ġs", "at")]
    first = ["<s>", "<pad>", "</s>", "<unk>"] if model_type != "gpt2" else []
    last = ["<mask>"] if model_type != "gpt2" else ["<|endoftext|>"]
    tokens = [*first, *alphabet, *("".join(pair) for pair in merges), *last]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if config is not None:
        write_json(folder / "tokenizer_config.json", config)
    if model_type is not None:
        write_json(folder / "config.json", {"model_type": model_type})
    return folder
