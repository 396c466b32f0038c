"""One call of `generate`: its arguments, checked, and the state that the model is in while it writes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from modelzoo.data import Tokenizer, load_tokenizer
from modelzoo.errors import ConfigError, DataError, ModelZooError
from modelzoo.generation.prepack import is_worth_it, prepacked
from modelzoo.generation.prompt_batch import Prompts
from modelzoo.generation.prompts import PromptsGiven, read_prompts
from modelzoo.generation.ranks import Ranks
from modelzoo.generation.settings import GenerationSettings
from modelzoo.generation.special_ids import SpecialIds, special_ids
from modelzoo.generation.written_text import Reader, WordReader, WrittenText
from modelzoo.models.decoder_model import DecoderModel
from modelzoo.models.decoding import Decodable
from modelzoo.models.model import Model

__all__ = ["Job", "prepare", "ready"]


@dataclass(frozen=True, slots=True)
class Job:
    """A call whose arguments are right."""

    model: Model
    prompts: Prompts
    """R rows; before a beam search has widened them."""
    settings: GenerationSettings
    special: SpecialIds
    tokenizer: Tokenizer | None
    ranks: Ranks

    @property
    def decodable(self) -> Decodable:
        """The model as what it can do."""
        return cast(Decodable, self.model)

    def context(self, row: int) -> list[int]:
        """Return the ids that a row's text continues; none behind an encoder, and where it begins a text of its own."""
        return [] if self.model.task == "seq2seq_lm" or self.prompts.begins_text else self.prompts.row(row)

    def reader(self, row: int) -> Reader:
        """Return what turns a row's ids into text.

        Args:
            row: Of the prompts.
        """
        assert self.tokenizer is not None
        return WordReader(self.tokenizer, self.prompts.words[row]) if self.prompts.words else self.tokenizer

    def written_texts(self) -> list[WrittenText]:
        """Return an empty text for each row; none without a tokenizer."""
        if self.tokenizer is None:
            return []
        rows = range(len(self.prompts.ids))
        return [WrittenText(self.reader(row), self.context(row), self.settings.stop_texts) for row in rows]


def prepare(
    model: Model,
    inputs: PromptsGiven,
    attention_mask: Tensor | None,
    tokenizer: Tokenizer | None,
    settings: GenerationSettings,
    *,
    is_streamed: bool,
) -> Job:
    """Check a call, on all ranks together where they need each other.

    Args:
        model: As in `generate`.
        inputs: As in `generate`.
        attention_mask: As in `generate`.
        tokenizer: As in `generate`.
        settings: How to write.
        is_streamed: Whether text is wanted while the model writes.

    Raises:
        ConfigError: As in `generate`.
        DataError: As in `generate`.
        RankError: Another rank's call is wrong.
    """
    if model.task not in ("causal_lm", "seq2seq_lm") or not hasattr(model, "prefill"):
        tasks = [task for task in model.tasks if task in ("causal_lm", "seq2seq_lm")]
        advice = f"load it with task={tasks[0]!r}" if tasks else "its family writes no text; load a language model"
        raise ConfigError(f"this {type(model).__name__} was built for {model.task}; {advice}")
    if is_streamed and settings.num_beams > 1:
        raise ConfigError(f"num_beams={settings.num_beams}: a beam search knows its text at the end only; leave out the streaming")
    ranks = Ranks(model, settings)
    job, problem = None, None
    try:
        special = special_ids(model, settings)
        if tokenizer is None and (is_streamed or settings.stop_texts or _are_texts(inputs)):
            tokenizer = _tokenizer_of(model)
        special = special.or_end(None if tokenizer is None or settings.eos_ids is not None else tokenizer.eos_id)
        prompts = read_prompts(model, inputs, attention_mask, tokenizer, special)
        _check_room(model, prompts, settings)
        if settings.num_beams == 1:
            prompts = prompts.repeated(settings.num_return_sequences)
        job = Job(model, prompts, settings, special, tokenizer, ranks)
    except ModelZooError as error:
        problem = error
    ranks.start_together(problem)
    assert job is not None
    return job


def _are_texts(inputs: PromptsGiven) -> bool:
    if isinstance(inputs, Tensor | Prompts):
        return False
    return isinstance(inputs, str | Mapping) or any(isinstance(item, str | Mapping) for item in inputs)


def _tokenizer_of(model: Model) -> Tokenizer:
    if model.source_folder is None:
        raise ConfigError("this model came from no folder, so its tokenizer is not known; give tokenizer=load_tokenizer(FOLDER)")
    return load_tokenizer(model.source_folder)


def _check_room(model: Model, prompts: Prompts, settings: GenerationSettings) -> None:
    """Refuse what does not fit the model's positions; an encoder's input takes none of the decoder's."""
    width = prompts.ids.shape[1]
    limit = model.max_cached_length if isinstance(model, DecoderModel) else model.max_length
    limit -= model.num_virtual_tokens
    if model.task == "causal_lm" and width + settings.max_new_tokens > limit:
        room = limit - width
        advice = f"set max_new_tokens to {room} or less" if room > 0 else "shorten the prompt"
        raise DataError(
            f"a prompt of {width} tokens and max_new_tokens={settings.max_new_tokens} exceed the limit {limit}; {advice}"
        )


@contextmanager
def ready(job: Job) -> Iterator[None]:
    """Put the model into evaluation mode and its weights into the fastest layout, and both back."""
    modes = [(module, module.training) for module in job.model.modules()]
    wanted = job.settings.prepack
    num_rows = len(job.prompts.ids) * job.settings.num_beams
    is_packed = is_worth_it(job.settings.max_new_tokens, num_rows) if wanted is None else wanted
    job.model.eval()
    try:
        with prepacked(job.model, num_rows) if is_packed else nullcontext():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
