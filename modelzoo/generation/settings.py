"""How a model is asked to write: every option, its range, and which options go together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from modelzoo.errors import ConfigError, closest

__all__ = ["GenerationSettings", "settings_from"]

_LARGEST_SEED = 2**63 - 1
# Options that only one way of writing reads, with their defaults: another value without it would have no effect.
_OF_SAMPLING: dict[str, object] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "seed": 0}
_OF_BEAMS: dict[str, object] = {"length_penalty": 1.0, "early_stopping": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSettings:
    """Options of `generate`; names, defaults and meanings are transformers' unless said otherwise."""

    max_new_tokens: int = 20
    """Tokens that are written at most, at least 1."""
    min_new_tokens: int = 0
    """Tokens before which no end token is written, at most `max_new_tokens`."""
    do_sample: bool = False
    """Whether tokens are drawn; otherwise the best one is taken."""
    temperature: float = 1.0
    """What scores are divided by before a token is drawn, above 0."""
    top_k: int | None = 50
    """Draw from this many best tokens, at least 1; None for all."""
    top_p: float = 1.0
    """Draw from the fewest best tokens whose probabilities reach this sum, above 0 and at most 1."""
    min_p: float = 0.0
    """Draw from tokens with at least this share of the best one's probability, 0 to 1."""
    repetition_penalty: float = 1.0
    """What positive scores of tokens that stand in the prompt or the text are divided by, and negative ones multiplied, above 0."""
    num_beams: int = 1
    """Sequences that a beam search keeps, at least 1; 1 for no beam search."""
    length_penalty: float = 1.0
    """A beam's score is its log-probability divided by its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """When a beam search ends: True once there are `num_beams` finished ones, False when no better one is likely, "never" when none
    is possible."""
    num_return_sequences: int = 1
    """Sequences for each prompt: draws, or the best beams."""
    eos_token_id: int | Sequence[int] | None = None
    """Ids that end a text; None for those of the model's folder, () for none."""
    pad_token_id: int | None = None
    """Id that fills up short rows; None for the model's, or the first end token."""
    stop_strings: str | Sequence[str] = ()
    """Texts that end a text when they have been written; they are not part of `Generation.texts`."""
    seed: int = 0
    """Of this call's own random generator, 0 to 2^63 - 1; torch's global one is neither read nor moved."""
    return_scores: bool = False
    """Whether the scores of every step are kept: V floats for each token that is written; not for beams."""
    prepack: bool | None = None
    """Whether weights are copied into the CPU's own layout for the time of the call, for speed; None to do so when enough tokens
    are written to pay for it. The copies take as much memory as the weights."""
    is_synced: bool | None = None
    """Whether all ranks of torch.distributed call together and must run the same number of steps; None for a sharded model."""

    def __post_init__(self) -> None:
        """Check the values."""
        self._normalise()
        for name, low in (("max_new_tokens", 1), ("min_new_tokens", 0), ("num_beams", 1), ("num_return_sequences", 1)):
            _check_integer(name, getattr(self, name), low)
        _check_integer("seed", self.seed, 0, _LARGEST_SEED)
        for name in ("top_k", "pad_token_id"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 1 if name == "top_k" else 0)
        for token_id in self.eos_ids or ():
            _check_integer("eos_token_id", token_id, 0)
        for name in ("do_sample", "return_scores", "prepack", "is_synced"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name in ("do_sample", "return_scores")):
                raise ConfigError(f"{name}={value!r} must be True or False")
        self._check_numbers()
        if self.early_stopping not in (True, False, "never"):
            raise ConfigError(f"early_stopping={self.early_stopping!r} is not known; use True, False or 'never'")
        for text in self.stop_texts:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"stop_strings: {text!r} is no text of at least one character")
        self._check_together()

    @property
    def eos_ids(self) -> tuple[int, ...] | None:
        """`eos_token_id` as a tuple; None where the model's own are meant."""
        return None if self.eos_token_id is None else tuple(self.eos_token_id)  # type: ignore[arg-type]  # no int after __post_init__

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """`stop_strings` as a tuple."""
        return tuple(self.stop_strings)

    def _normalise(self) -> None:
        """Turn the one or several forms of two fields into tuples."""
        several = not isinstance(self.stop_strings, str)
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings) if several else (self.stop_strings,))
        if self.eos_token_id is not None:
            several = isinstance(self.eos_token_id, Sequence)
            object.__setattr__(self, "eos_token_id", tuple(self.eos_token_id) if several else (self.eos_token_id,))  # type: ignore[arg-type]  # narrowed by `several`

    def _check_numbers(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"{name}={value!r} must be a finite number")
        if self.temperature <= 0:
            raise ConfigError(f"temperature={self.temperature} must be above 0; for the best token each time leave out do_sample")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p} must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p={self.min_p} must lie in 0 to 1")
        if self.repetition_penalty <= 0:
            raise ConfigError(f"repetition_penalty={self.repetition_penalty} must be above 0; 1 is no penalty")

    def _check_together(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(f"min_new_tokens={self.min_new_tokens} is above max_new_tokens={self.max_new_tokens}; lower it")
        if self.do_sample and self.num_beams > 1:
            raise ConfigError(f"do_sample=True with num_beams={self.num_beams}: a beam search does not draw; choose one of the two")
        for needed, holds, options in (
            ("do_sample=True", self.do_sample, _OF_SAMPLING),
            ("num_beams above 1", self.num_beams > 1, _OF_BEAMS),
        ):
            for name, default in options.items():
                if not holds and getattr(self, name) != default:
                    raise ConfigError(f"{name}={getattr(self, name)!r} has no effect without {needed}; add that or leave it out")
        count = self.num_return_sequences
        if self.num_beams > 1 and count > self.num_beams:
            raise ConfigError(
                f"num_return_sequences={count} is above num_beams={self.num_beams}; a search returns its beams at most"
            )
        if count > 1 and self.num_beams == 1 and not self.do_sample:
            raise ConfigError(f"num_return_sequences={count}: the best token each time gives one text; sample or search with beams")
        if self.return_scores and self.num_beams > 1:
            raise ConfigError("return_scores=True with beams: their scores are sequence_scores, which are always returned")


def settings_from(given: GenerationSettings | None, options: dict[str, Any]) -> GenerationSettings:
    """Return the settings of a call that takes either an object or single options.

    Raises:
        ConfigError: Both were given, an option is not known, or a value is out of range.
    """
    if given is not None and options:
        raise ConfigError(f"settings and {', '.join(options)} were given; put all of them into one")
    names = [each.name for each in fields(GenerationSettings)]
    for name in options:
        if name not in names:
            near = closest(name, names)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"{name}: is no option of generation; {hint}")
    return given or GenerationSettings(**options)


def _check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r} must be an integer")
    if value < low:
        raise ConfigError(f"{name}={value} must be at least {low}")
    if high is not None and value > high:
        raise ConfigError(f"{name}={value} must be at most {high}")
