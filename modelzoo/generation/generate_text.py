"""`generate` and `stream`: from prompts to what a model writes."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from modelzoo.data import Tokenizer
from modelzoo.errors import DataError
from modelzoo.generation.beam_search import search
from modelzoo.generation.job import Job, prepare, ready
from modelzoo.generation.prompts import PromptsGiven
from modelzoo.generation.result import Generation
from modelzoo.generation.settings import GenerationSettings, settings_from
from modelzoo.generation.writing import Step, write_tokens
from modelzoo.generation.written_text import find_stop, text_after
from modelzoo.models.model import Model

__all__ = ["generate", "stream"]

OnText = Callable[[int, str], None]
"""Is given a row and a piece of its text."""


def generate(
    model: Model,
    inputs: PromptsGiven,
    attention_mask: Tensor | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    settings: GenerationSettings | None = None,
    on_text: OnText | None = None,
    **options: Any,
) -> Generation:
    """Let a model continue prompts, or answer them if it has an encoder.

    Nothing is left behind: the model keeps its mode and its weights, and torch's global random generator is not touched. Tokens of
    greedy decoding and beam search equal transformers' on the same weights, and sampled ones equal what it draws after
    `torch.manual_seed(seed)`.

    Args:
        model: For "causal_lm" or "seq2seq_lm".
        inputs: A text, texts, (B, T) int64 ids with padding on the left, or lists of ids of any lengths. For CPM-Bee also a tree,
            as {"input": "...", "<ans>": ""}, or trees, with one text below "<ans>"; for GLM-10B a text has a mask ([gMASK]).
        attention_mask: (B, T), non-zero where there is a token; for (B, T) ids. Without it, the padding id marks padding.
        tokenizer: Of the model; None for that of its folder, which is read only where text goes in or out.
        settings: How to write; or single options, below.
        on_text: Called with the row and the text that has become certain, while the model writes; not for beams.
        **options: Fields of `GenerationSettings`.

    Raises:
        ConfigError: An option is not known, out of range or without effect, or the model does not write text.
        DataError: A prompt is empty, padded on the right, or too long for the model with `max_new_tokens`.
    """
    job = prepare(model, inputs, attention_mask, tokenizer, settings_from(settings, options), is_streamed=on_text is not None)
    with ready(job):
        return _search(job) if job.settings.num_beams > 1 else _write(job, on_text)


def stream(
    model: Model,
    inputs: PromptsGiven,
    attention_mask: Tensor | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    settings: GenerationSettings | None = None,
    **options: Any,
) -> Iterator[str]:
    """Yield the continuation of one prompt piece by piece, each as soon as it is certain.

    The arguments are checked now, and the model reads the prompt when the first piece is asked for. Until the iterator has ended or
    is closed, the model is in evaluation mode and its weights must not change.

    Args:
        model: As in `generate`.
        inputs: One prompt, as in `generate`.
        attention_mask: As in `generate`.
        tokenizer: As in `generate`.
        settings: As in `generate`.
        **options: As in `generate`.

    Raises:
        ConfigError: As in `generate`.
        DataError: As in `generate`, or there is more than one prompt.
    """
    job = prepare(model, inputs, attention_mask, tokenizer, settings_from(settings, options), is_streamed=True)
    if len(job.prompts.ids) > 1:
        raise DataError(f"{len(job.prompts.ids)} rows were given to stream, which writes one; use generate(..., on_text=...)")
    return _pieces(job)


def _write(job: Job, on_text: OnText | None) -> Generation:
    texts = job.written_texts()
    steps: list[Step] = []
    for step in write_tokens(job.decodable, job.prompts, job.settings, job.special, texts, job.ranks):
        steps.append(step)
        for row, piece in enumerate(step.pieces):
            if piece and on_text is not None:
                on_text(row, piece)
    for row, text in enumerate(texts):
        rest = text.finish()
        if rest and on_text is not None:
            on_text(row, rest)
    lengths = torch.stack([step.was_writing for step in steps], dim=1).sum(1)
    steps = steps[: int(lengths.max())]  # later ones were for other ranks
    written = torch.stack([step.ids for step in steps], dim=1)
    scores = [step.scores for step in steps if step.scores is not None]
    return Generation(
        sequences=_with_start(job, written, 1),
        new_ids=[row[:length] for row, length in zip(written.tolist(), lengths.tolist(), strict=True)],
        texts=[text.text for text in texts] if job.tokenizer is not None else None,
        scores=torch.stack(scores, dim=1) if scores else None,
    )


def _pieces(job: Job) -> Iterator[str]:
    with ready(job):
        texts = job.written_texts()
        for step in write_tokens(job.decodable, job.prompts, job.settings, job.special, texts, job.ranks):
            if step.pieces[0]:
                yield step.pieces[0]
        if rest := texts[0].finish():
            yield rest


def _search(job: Job) -> Generation:
    tokenizer, stops, count = job.tokenizer, job.settings.stop_texts, job.settings.num_return_sequences
    has_stop = None
    if stops and tokenizer is not None:
        rows = range(len(job.prompts.ids))
        contexts, readers = [job.context(row) for row in rows], [job.reader(row) for row in rows]

        def has_stop(prompt: int, ids: list[int]) -> bool:
            return find_stop(text_after(readers[prompt], contexts[prompt], ids), stops) is not None

    beams = search(job.decodable, job.prompts, job.settings, job.special, has_stop, job.ranks)
    lengths = beams.done_lengths[:, :count].flatten()
    written = beams.done_ids[:, :count].flatten(0, 1)[:, : int(lengths.max())]
    new_ids = [row[:length] for row, length in zip(written.tolist(), lengths.tolist(), strict=True)]
    return Generation(
        sequences=_with_start(job, written, count),
        new_ids=new_ids,
        texts=None if tokenizer is None else [_text(job, row // count, ids) for row, ids in enumerate(new_ids)],
        sequence_scores=beams.done_scores[:, :count].flatten(),
    )


def _text(job: Job, prompt: int, ids: list[int]) -> str:
    """Return a finished row's text up to a stop string."""
    text = text_after(job.reader(prompt), job.context(prompt), ids)
    return text[: find_stop(text, job.settings.stop_texts)]


def _with_start(job: Job, written: Tensor, count: int) -> Tensor:
    """Put the prompts, or a decoder's start token, before what was written."""
    if job.model.task == "causal_lm":
        return torch.cat([job.prompts.repeated(count).ids, written], dim=1)
    if job.special.start is None:
        return written
    return torch.cat([torch.full_like(written[:, :1], job.special.start), written], dim=1)
