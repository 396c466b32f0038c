"""The files of a model folder: which names may be opened, and reading their JSON with limits."""

import json
import re
from pathlib import Path
from typing import Any

from modelzoo.errors import CheckpointError

__all__ = [
    "ADAPTER_FILES",
    "CONFIG_FILE",
    "COPIED_FILES",
    "TOKENIZER_FILES",
    "VOCABULARY_FILES",
    "WEIGHT_FILES",
    "check_inside",
    "origin",
    "parse_json",
    "read_config",
    "read_json",
    "revision_of",
    "shown",
]

CONFIG_FILE = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "chinese_vocab.model",
    "cog-pretrain.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "chat_template.jinja",
)
"""What a tokenizer of any family is stored in."""

VOCABULARY_FILES = tuple(name for name in TOKENIZER_FILES if name.startswith(("tokenizer.", "vocab.")) or name.endswith(".model"))
"""Those of which a tokenizer has at least one."""

COPIED_FILES = (*TOKENIZER_FILES, "generation_config.json", "preprocessor_config.json")
"""What is copied as it stands when a model is saved again: the tokenizer, how transformers generates by default, and what is done
to images before they are read."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT keeps an adapter in: what its tensors mean, and the tensors."""

WEIGHT_FILES = re.compile(r"(model|pytorch_model)(-[0-9]{5}-of-[0-9]{5})?\.(safetensors|bin)(\.index\.json)?")
"""The names that transformers gives to weights."""

_CONFIG_BYTES = 8 * 2**20


def shown(text: object, limit: int = 120) -> str:
    """Return a value for a message, shortened: a hostile file can hold a key of many megabytes."""
    words = text if isinstance(text, str) else repr(text)
    words = words if words.isprintable() else repr(words)
    return words if len(words) <= limit else f"{words[: limit - 3]}..."


def check_inside(folder: Path, name: str) -> Path:
    """Return the real path of a file of a model folder, before it is opened.

    A link may lead to another file of the folder, or, from a snapshot of the Hugging Face cache, to that cache's blobs.

    Args:
        folder: The model folder.
        name: The file's name, without any folder.

    Raises:
        CheckpointError: The name is not a plain file name, there is no such file, it is not a regular file, or it is a link that
            leads elsewhere.
    """
    plain = 0 < len(name) <= 255 and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}
    if not plain:
        raise CheckpointError(f"{folder}: expected the name of a file in this folder, found {shown(repr(name))}; it was not opened")
    path = folder / name
    if path.is_symlink():
        real, home = path.resolve(), folder.resolve()
        if real.parent != home and not any(real.is_relative_to(blobs) for blobs in _blobs(home)):
            raise CheckpointError(
                f"{path}: expected a file inside the folder, found a link to {real}; it was not opened. "
                "Copy the file into the folder if you trust it"
            )
        path = real
    if not path.is_file():
        found = "something that is not a regular file" if path.exists() else "nothing"
        raise CheckpointError(f"{folder / name}: expected a file, found {found}")
    return path


def _blobs(home: Path) -> list[Path]:
    """Return where the links of a snapshot in the Hugging Face cache may lead: <cache>/models--*/snapshots/<commit>."""
    repository = home.parent.parent
    if home.parent.name != "snapshots" or not repository.name.startswith("models--"):
        return []
    return [repository / "blobs", repository.parent / "blobs"]


def revision_of(folder: Path) -> str | None:
    """Return the commit of a snapshot in the Hugging Face cache, or None for any other folder."""
    home = folder.resolve()
    return home.name if _blobs(home) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add is falsy
        raise ValueError(f"the key {shown(twice)} stands there twice")
    return result


def origin(folder: Path) -> dict[str, str | None]:
    """Return where a model came from without naming this machine's folders: repository and commit, or the folder's own name."""
    home = folder.resolve()
    if not _blobs(home):
        return {"source": home.name, "revision": None}
    repository = home.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return {"source": repository, "revision": home.name}


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object in UTF-8 that names no key twice.

    Raises:
        CheckpointError: It is not one; the message begins with `where`.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise CheckpointError(f"{where}: expected JSON, found brackets nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{where}: expected JSON, found {shown(str(error), 200)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json(folder: Path, name: str, limit_bytes: int) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder.

    Raises:
        CheckpointError: As `check_inside` and `parse_json`, or the file is larger than `limit_bytes`.
    """
    path = check_inside(folder, name)
    size = path.stat().st_size
    if size > limit_bytes:
        raise CheckpointError(f"{folder / name}: expected at most {limit_bytes} bytes, found {size}")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder / name}: cannot be read: {error.strerror}") from None
    return parse_json(text, str(folder / name))


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model folder as it stands.

    Raises:
        CheckpointError: It is missing, too large (8 MiB), not a JSON object, nested too deeply, or names a key twice.
    """
    if not (folder / CONFIG_FILE).exists() and not (folder / CONFIG_FILE).is_symlink():
        raise CheckpointError(f"{folder / CONFIG_FILE}: expected the config of a model, found nothing. Is {folder} a model folder?")
    return read_json(folder, CONFIG_FILE, _CONFIG_BYTES)
