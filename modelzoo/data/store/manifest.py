"""What a token store says of itself: store.json beside its tokens."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["BIN", "INDEX", "MANIFEST", "StoreManifest", "is_store", "read_manifest", "tokenizer_fingerprint"]

MANIFEST, BIN, INDEX = "store.json", "tokens.bin", "tokens.idx"
FORM = "modelzoo token store 2"
PROBE = "A text with words, 123 numbers, Ümläute, 汉字 and  two spaces.\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreManifest:
    """The facts of a store."""

    form: str = FORM
    """Which form the folder has."""
    tokenizer: str
    """Fingerprint of the tokenizer that made the ids."""
    vocab_size: int
    """Ids are below it."""
    documents: int
    """Documents with at least one token that is not special."""
    empty_documents: int
    """Documents without, which are left out."""
    tokens: int
    """Tokens of all documents, without special ones around them."""
    sha256: str
    """Of the ids, portion by portion."""
    block_crc32: tuple[int, ...]
    """Checksum of each 1 MiB of the ids, compared when a run first reads of it."""
    sources: tuple[str, ...]
    """Names of the files that were read, in order."""

    def to_json(self) -> str:
        """Return the manifest as it is written."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def is_store(folder: str | Path) -> bool:
    """Return whether a folder is a token store."""
    return (Path(folder) / MANIFEST).is_file()


def read_manifest(folder: str | Path) -> StoreManifest:
    """Return what a store says of itself.

    Raises:
        DataError: If there is no store, or its manifest has another form.
    """
    path = Path(folder) / MANIFEST
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: expected a token store, found: {error.strerror}; make one with `modelzoo data build`") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON, found: {error}; build the store again") from error
    names = [each.name for each in fields(StoreManifest)]
    if not isinstance(values, dict) or values.get("form") != FORM or sorted(values) != sorted(names):
        found = values.get("form", ", ".join(values)) if isinstance(values, dict) else type(values).__name__
        raise DataError(f"{path}: expected a {FORM!r} with {', '.join(names)}; found {str(found)[:200]!r}: build the store again")
    for name, value in values.items():
        if not _fits(name, value):
            raise DataError(
                f"{path}: {name}: expected what `modelzoo data build` writes, found {value!r:.100}; build the store again"
            )
    lists = {name: tuple(values[name]) for name in ("sources", "block_crc32")}
    return StoreManifest(**{**values, **lists})


def _fits(name: str, value: object) -> bool:
    """Return whether a fact has the kind that it should have."""
    if name in ("form", "tokenizer", "sha256"):
        return isinstance(value, str)
    if name in ("sources", "block_crc32"):
        return isinstance(value, list) and all(isinstance(each, str if name == "sources" else int) for each in value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return a sha256 that tells tokenizers apart: their vocabulary, and what they make of a short text."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    probe = tokenizer.encode_parts([PROBE])[0].input_ids
    return hashlib.sha256(json.dumps([vocabulary, probe], ensure_ascii=False).encode()).hexdigest()
