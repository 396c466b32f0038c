"""Special and added tokens, read from the four files that Hugging Face folders spread them over.

`tokenizer_config.json` names them; older folders also have `special_tokens_map.json` (which then wins) and `added_tokens.json`;
`tokenizer.json` carries an `added_tokens` list. The order of precedence and of adding is transformers 5.24's
(`PreTrainedTokenizerBase._from_pretrained`, `TokenizersBackend.__init__`), because ids depend on it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from modelzoo.errors import DataError

__all__ = ["TOKEN_NAMES", "SpecialTokens", "add_tokens", "read_json_object", "read_special_tokens"]

# In transformers' order: tokens that the vocabulary lacks get their ids in this order.
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """The named tokens of a folder, its extra special tokens and its added tokens by id."""

    named: dict[str, AddedToken] = field(default_factory=dict)
    """Token by role (`cls_token`, ...), in the order of TOKEN_NAMES."""
    extra: tuple[AddedToken, ...] = ()
    """Special tokens without a role."""
    added: dict[int, AddedToken] = field(default_factory=dict)
    """Tokens beside the vocabulary file, by the id that the files give them."""

    def text(self, name: str) -> str | None:
        """Return the text of the token with this role, or None."""
        token = self.named.get(name)
        return None if token is None else str(token.content)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return a JSON file's object, or an empty one when there is no such file.

    Raises:
        DataError: If the file is no UTF-8 JSON or holds something else than an object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8, found byte {error.object[error.start]:#04x} at {error.start}") from error
    except (ValueError, RecursionError) as error:  # a number of 4300 digits is a ValueError
        raise DataError(f"{path}: expected JSON, found: {error}; download the file again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_special_tokens(folder: Path, config: Mapping[str, Any], defaults: Mapping[str, str]) -> SpecialTokens:
    """Collect the special tokens of a folder.

    Args:
        folder: The folder of the tokenizer files.
        config: The content of its tokenizer_config.json.
        defaults: Token by role that the tokenizer's class has when no file says otherwise.

    Raises:
        DataError: If a file names a token in a form that is not known.
    """
    settings: dict[str, Any] = {**defaults, **{key: value for key, value in config.items() if key.endswith("_token")}}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in config:
        for token_id, value in config["added_tokens_decoder"].items():
            added[int(token_id)] = _token(value, folder / "tokenizer_config.json", f"added_tokens_decoder.{token_id}")
    else:
        special_map = read_json_object(folder / "special_tokens_map.json")
        settings.update({key: value for key, value in special_map.items() if key.endswith("_token")})
        extra = extra or special_map.get("extra_special_tokens") or special_map.get("additional_special_tokens") or []
        added.update(_legacy_added_tokens(folder, settings))
    by_text = {str(token.content): token for token in added.values()}
    where = folder / "tokenizer_config.json"
    tokens = {name: _token(value, where, name) for name, value in settings.items() if isinstance(value, str | dict)}
    tokens = {name: by_text.get(str(token.content), token) for name, token in tokens.items()}
    values = list(extra.values()) if isinstance(extra, dict) else list(extra)
    own = [token for name, token in tokens.items() if name not in TOKEN_NAMES]
    return SpecialTokens(
        named={name: tokens[name] for name in TOKEN_NAMES if name in tokens},
        extra=(*own, *(_token(value, where, "extra_special_tokens") for value in values)),
        added=added,
    )


def add_tokens(backend: Tokenizer, tokens: SpecialTokens) -> None:
    """Add the added tokens by id, then the special tokens that the tokenizer does not know yet."""
    pending = [tokens.added[token_id] for token_id in sorted(tokens.added)]
    known = {str(token.content) for token in backend.get_added_tokens_decoder().values()}
    known |= {str(token.content) for token in pending}
    for token in (*tokens.named.values(), *tokens.extra):
        if str(token.content) not in known:
            known.add(str(token.content))
            pending.append(token)
    special = {str(token.content) for token in tokens.named.values()}
    for token in pending:
        token.special = token.special or str(token.content) in special
    if pending:
        backend.add_tokens(pending)


def _legacy_added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return what added_tokens.json and then the added_tokens list of tokenizer.json say."""
    added: dict[int, AddedToken] = {}
    special = {value.get("content") if isinstance(value, dict) else value for value in settings.values()}
    for text, token_id in read_json_object(folder / "added_tokens.json").items():
        is_special = text in special
        added[int(token_id)] = AddedToken(text, rstrip=False, lstrip=False, normalized=not is_special, special=is_special)
    path = folder / "tokenizer.json"
    for number, value in enumerate(read_json_object(path).get("added_tokens") or []):
        if not isinstance(value, dict) or not isinstance(value.get("id"), int):
            raise DataError(f"{path}: added_tokens[{number}]: expected an object with an id, found {value!r}")
        added[value["id"]] = _token({key: item for key, item in value.items() if key != "id"}, path, f"added_tokens[{number}]")
    return added


def _token(value: object, path: Path, key: str) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {name: bool(value[name]) for name in ("single_word", "lstrip", "rstrip", "normalized") if name in value}
        return AddedToken(value["content"], special=bool(value.get("special", True)), **flags)
    raise DataError(f"{path}: {key}: expected a token's text or an object with its content, found {value!r}")
