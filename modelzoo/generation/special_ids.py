"""Which ids end a text and which fill up a row: what was asked for, else what the model's folder says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modelzoo.errors import ConfigError
from modelzoo.generation.settings import GenerationSettings
from modelzoo.hub.files import read_json
from modelzoo.models.model import Model

__all__ = ["SpecialIds", "special_ids"]

_FILE = "generation_config.json"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a role in writing."""

    end: tuple[int, ...]
    """Ids that end a text; may be empty."""
    pad: int
    """Id that stands in rows that have ended, and before short prompts."""
    start: int | None
    """Id that a decoder with an encoder starts from; None for a model that continues its prompt."""
    known_pad: int | None
    """The padding id that settings or folder name; None where `pad` is a stand-in, and says nothing about a prompt."""

    def or_end(self, token_id: int | None) -> "SpecialIds":
        """Return the same with an end token, where there is none so far."""
        return self if self.end or token_id is None else replace(self, end=(token_id,))


def special_ids(model: Model, settings: GenerationSettings) -> SpecialIds:
    """Return the ids of a call.

    Settings come first, then generation_config.json, then config.json, then the model's own config. Ids of files that are outside
    the vocabulary cannot be written and are left out; where nobody names a padding id, the first end token stands in, as in
    transformers.

    Raises:
        ConfigError: An id of the settings is outside the vocabulary.
        CheckpointError: generation_config.json cannot be read.
    """
    size = model.config.vocab_size
    for name, ids in (("eos_token_id", settings.eos_ids or ()), ("pad_token_id", (settings.pad_token_id,))):
        for token_id in ids:
            if token_id is not None and token_id >= size:
                raise ConfigError(f"{name}={token_id} is not in 0 to {size - 1} (vocab_size={size})")
    sources = [*_file(model), model.config.source or {}, model.config.values()]
    end = settings.eos_ids
    if end is None:
        stated = _first(sources, "eos_token_id") or _first(sources, "end_token_id")  # the latter is GLM-10B's, of a blank
        end = tuple(dict.fromkeys(each for each in stated if 0 <= each < size))
    pad = settings.pad_token_id
    if pad is None:
        pad = next((each for each in _first(sources, "pad_token_id") if 0 <= each < size), None)
    stand_in = end[0] if end else 0
    start = _first(sources, "decoder_start_token_id") if model.task == "seq2seq_lm" else ()
    return SpecialIds(end, stand_in if pad is None else pad, start[0] if start else None, pad)


def _file(model: Model) -> list[dict[str, Any]]:
    folder = model.source_folder
    if folder is None or not (folder / _FILE).exists():
        return []
    return [read_json(folder, _FILE, _MOST_BYTES)]


def _first(sources: Sequence[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    """Return the ids of the first source that has any under this name."""
    for source in sources:
        value = source.get(name)
        ids = value if isinstance(value, list | tuple) else [value]
        if ids and all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            return tuple(ids)
    return ()
