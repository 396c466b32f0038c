"""Building a token store: texts are read, tokenized and appended by portions; an interrupted build goes on where it was."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from modelzoo.data.row_problems import problem_rows
from modelzoo.data.sources import iterate_rows
from modelzoo.data.store.indexed import block_sums, id_type, write_index
from modelzoo.data.store.manifest import BIN, INDEX, MANIFEST, StoreManifest, is_store, tokenizer_fingerprint
from modelzoo.data.tasks.texts import read_texts
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError, SaveError

__all__ = ["BuildProgress", "StoreReport", "build_store"]

PORTION, PORTION_CHARACTERS = 1_000, 4_000_000
"""Most documents that are tokenized together, which are lost when a build is killed; fewer when they are long."""
LENGTHS, STATE = "lengths.bin", "state.json"
PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    file: int
    """Number of the file that is read, from 1."""
    files: int
    """Number of all files."""
    documents: int
    """Documents so far."""
    tokens: int
    """Tokens so far."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What became of the texts."""

    folder: Path
    manifest: StoreManifest
    resumed_at: int
    """Documents that an earlier, interrupted build had done."""


@dataclass(slots=True)
class _State:
    """Where a build stands; it is only ever at the end of a portion."""

    request: str
    """Fingerprint of what was asked for: sources with their sizes, tokenizer, column."""
    file: int = 0
    rows: int = 0
    """Rows read of that file."""
    documents: int = 0
    empty: int = 0
    tokens: int = 0
    sha256: str = ""


def build_store(
    sources: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    column: str = "text",
    progress: Callable[[BuildProgress], None] | None = None,
) -> StoreReport:
    """Tokenize texts into a folder that `data.train` can name.

    The folder appears when it is complete. Until then everything is in FOLDER.partial, and the same call goes on from there.

    Args:
        sources: Files with one document a row: .jsonl, .parquet, .json, .csv, .tsv, or .txt, which is one document. The first two
            are read piece by piece, the others whole.
        tokenizer: Of the model that is to be trained.
        folder: New folder.
        column: Column of the texts.
        progress: Hears of every portion.

    Raises:
        DataError: If the folder exists or is half built of something else, a source cannot be read, has no text in a row, or there
            is no token at all.
        SaveError: If another process builds this store, or something cannot be written.
    """
    paths = [Path(source).expanduser() for source in sources]
    target = Path(folder)
    if target.exists():
        what = "is a finished store" if is_store(target) else "exists"
        raise DataError(f"{target}: expected a new folder, but it {what}; choose another one")
    request = _request(paths, tokenizer, column)
    partial = target.with_name(target.name + PARTIAL)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _alone(partial):
            state = _read_state(partial, request)
            resumed_at = state.documents
            _append(partial, state, paths, tokenizer, column, progress)
            manifest = _finish(partial, target, state, paths, tokenizer)
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"{error.filename or partial}: cannot be written: {error.strerror}; the same command goes on from here"
        ) from error
    return StoreReport(target, manifest, resumed_at)


def _request(paths: Sequence[Path], tokenizer: Tokenizer, column: str) -> str:
    if not paths:
        raise DataError("expected at least one file of texts, found none")
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: expected a file, found none")
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    return hashlib.sha256(json.dumps([files, tokenizer_fingerprint(tokenizer), column]).encode()).hexdigest()


@contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        SaveError: Another process holds it.
    """
    import fcntl

    with (partial / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SaveError(f"{partial}: another process builds this store; wait for it") from None
        yield


def _read_state(partial: Path, request: str) -> _State:
    """Return where an earlier build of the same request stopped, its files cut to that point; or a new start."""
    path = partial / STATE
    if not path.is_file():
        return _State(request)
    state = _State(**json.loads(path.read_text(encoding="utf-8")))
    if state.request != request:
        raise DataError(
            f"{partial}: holds an unfinished build of other files, another tokenizer or another column; remove that folder, or "
            "choose another one"
        )
    return state


def _append(
    partial: Path,
    state: _State,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    column: str,
    progress: Callable[[BuildProgress], None] | None,
) -> None:
    """Read what is left, and append it."""
    dtype = id_type(tokenizer.vocab_size)
    with _opened(partial / BIN, state.tokens * dtype.itemsize) as ids, _opened(partial / LENGTHS, state.documents * 4) as lengths:
        for number in range(state.file, len(paths)):
            rows = iter(iterate_rows(paths[number]))
            for _ in islice(rows, state.rows):
                pass
            while portion := _portion(rows, column):
                _add(portion, state, ids, lengths, dtype, tokenizer, column, f"{paths[number]} from row {state.rows + 1}")
                _save(partial, state, ids, lengths)
                if progress is not None:
                    progress(BuildProgress(number + 1, len(paths), state.documents, state.tokens))
            state.file, state.rows = number + 1, 0


def _portion(rows: Iterator[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Return the next rows, empty at the end; which ones depends on the rows alone."""
    portion: list[dict[str, Any]] = []
    characters = 0
    while len(portion) < PORTION and characters < PORTION_CHARACTERS and (row := next(rows, None)) is not None:
        portion.append(row)
        characters += len(str(row.get(column, "")))
    return portion


def _add(
    portion: list[dict[str, Any]],
    state: _State,
    ids: BinaryIO,
    lengths: BinaryIO,
    dtype: np.dtype[np.generic],
    tokenizer: Tokenizer,
    column: str,
    source: str,
) -> None:
    if column not in portion[0]:
        raise DataError(f"{source}: expected the texts in column {column!r}, found {', '.join(map(str, portion[0]))}; name it")
    documents = [encoding.input_ids for encoding in tokenizer.encode_parts(read_texts(portion, column, source))]
    if tokenizer.begins_texts:
        begin = tokenizer.tokens([tokenizer.bos_id or 0])[0]
        twice = [f"row {row}: begins with {begin}" for row, ids in enumerate(documents, start=1) if ids[:1] == [tokenizer.bos_id]]
        if twice:
            raise problem_rows(source, twice, f"a run adds one; remove {begin} from the beginning of the text")
    filled = [document for document in documents if not tokenizer.special_ids.issuperset(document)]
    raw = np.fromiter((token for document in filled for token in document), dtype=dtype).tobytes()
    ids.write(raw)
    lengths.write(np.array([len(document) for document in filled], dtype="<i4").tobytes())
    state.rows += len(portion)
    state.documents += len(filled)
    state.empty += len(documents) - len(filled)
    state.tokens += len(raw) // dtype.itemsize
    state.sha256 = hashlib.sha256(state.sha256.encode() + raw).hexdigest()


@contextmanager
def _opened(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file for appending, cut to its first `size` bytes: what was written after the last state counts for nothing."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(size)
        file.seek(size)
        yield file


def _save(partial: Path, state: _State, *files: BinaryIO) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    new = partial / f"{STATE}.new"
    new.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new.replace(partial / STATE)


def _finish(partial: Path, target: Path, state: _State, paths: Sequence[Path], tokenizer: Tokenizer) -> StoreManifest:
    """Write index and manifest, and give the folder its name."""
    if not state.tokens:
        raise DataError(f"{paths[0]}: expected texts, found {state.empty} documents without a token")
    write_index(partial / INDEX, np.fromfile(partial / LENGTHS, dtype="<i4"), id_type(tokenizer.vocab_size))
    manifest = StoreManifest(
        tokenizer=tokenizer_fingerprint(tokenizer),
        vocab_size=tokenizer.vocab_size,
        documents=state.documents,
        empty_documents=state.empty,
        tokens=state.tokens,
        sha256=state.sha256,
        block_crc32=block_sums(partial / BIN),
        sources=tuple(path.name for path in paths),
    )
    (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    for name in (LENGTHS, STATE, "lock"):
        (partial / name).unlink()
    partial.rename(target)
    return manifest
