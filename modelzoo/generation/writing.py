"""Writing token by token: the best one, or one drawn."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.generation.prompt_batch import Prompts
from modelzoo.generation.ranks import Ranks
from modelzoo.generation.score_rules import ScoreRules
from modelzoo.generation.settings import GenerationSettings
from modelzoo.generation.special_ids import SpecialIds
from modelzoo.generation.written_text import WrittenText
from modelzoo.models.decoding import Decodable

__all__ = ["Step", "first_history", "write_tokens"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step wrote."""

    ids: Tensor
    """(R,) int64; the padding id in rows that had ended."""
    was_writing: Tensor
    """(R,) bool: rows that had not ended before."""
    pieces: tuple[str, ...]
    """Text that is certain now, a row each; empty strings without a tokenizer."""
    scores: Tensor | None
    """(R, V) float32, after all rules; None unless the settings ask for them."""


@torch.no_grad()
def write_tokens(
    model: Decodable,
    prompts: Prompts,
    settings: GenerationSettings,
    special: SpecialIds,
    texts: list[WrittenText],
    ranks: Ranks,
) -> Iterator[Step]:
    """Yield one step after the other until every row, on every rank, has ended.

    Args:
        model: In evaluation mode.
        prompts: R rows.
        settings: Of the call; no beams.
        special: Ids with a role.
        texts: One a row, which also find stop strings; empty for no text.
        ranks: Of the call.
    """
    device = prompts.ids.device
    rules = ScoreRules(settings, special.end, device)
    generator = torch.Generator(device).manual_seed(settings.seed)
    end = torch.tensor(special.end, dtype=torch.int64, device=device)
    writing = torch.ones(len(prompts.ids), dtype=torch.bool, device=device)
    mask = None if prompts.mask is None else prompts.mask.long()
    logits, state = model.prefill(prompts.ids, mask, settings.max_new_tokens, **prompts.marks, **prompts.shared)
    history = first_history(prompts, special, logits.shape[-1])
    for num_written in range(settings.max_new_tokens):
        scores = rules(logits.float(), history, num_written)
        chosen = _draw(scores, generator) if settings.do_sample else scores.argmax(-1)
        chosen = torch.where(writing, chosen, special.pad)
        before = writing
        pieces, is_stopped = _read(texts, chosen, writing)
        writing = writing & ~torch.isin(chosen, end) & ~is_stopped
        yield Step(chosen, before, pieces, scores if settings.return_scores else None)
        if num_written + 1 == settings.max_new_tokens or ranks.have_all_ended(not bool(writing.any())):
            return
        if rules.needs_history:
            history = torch.cat([history, chosen.unsqueeze(1)], dim=1)
        logits = model.decode(chosen, state)


def first_history(prompts: Prompts, special: SpecialIds, vocab_size: int) -> Tensor:
    """Return what a repetition penalty sees before the first token: the prompt, or the token that a decoder starts from.

    Args:
        prompts: R rows.
        special: For the start token.
        vocab_size: V, which stands for padding.

    Returns:
        (R, T) int64.
    """
    if special.start is not None:
        return prompts.ids.new_full((len(prompts.ids), 1), special.start)
    return prompts.ids if prompts.mask is None else prompts.ids.masked_fill(~prompts.mask, vocab_size)


def _draw(scores: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=generator).squeeze(1)


def _read(texts: list[WrittenText], chosen: Tensor, writing: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Return the certain pieces of text, and (R,) bool of the rows that a stop string ended."""
    is_stopped = torch.zeros_like(writing)
    if not texts:
        return ("",) * len(writing), is_stopped
    pieces = []
    for row, (text, token_id, is_writing) in enumerate(zip(texts, chosen.tolist(), writing.tolist(), strict=True)):
        pieces.append(text.add(token_id) if is_writing else "")
        is_stopped[row] = text.is_stopped
    return tuple(pieces), is_stopped
