"""Beam search, as transformers 5.24 defines it (`GenerationMixin._beam_search`): the same beams, scores and end."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modelzoo.generation.prompt_batch import Prompts
from modelzoo.generation.ranks import Ranks
from modelzoo.generation.score_rules import ScoreRules
from modelzoo.generation.settings import GenerationSettings
from modelzoo.generation.special_ids import SpecialIds
from modelzoo.generation.writing import first_history
from modelzoo.models.decoding import Decodable

__all__ = ["Beams", "search"]

_NEVER = -1.0e9  # transformers' stand-in for minus infinity in sums of log-probabilities
HasStop = Callable[[int, list[int]], bool]
"""Whether a stop string stands in what was written: (prompt, new ids)."""


@dataclass(frozen=True, slots=True)
class Beams:
    """The K running and the K best finished sequences of each of B prompts; N is `max_new_tokens`."""

    ids: Tensor
    """(B, K, N) int64: what the running ones have written."""
    scores: Tensor
    """(B, K) float: their log-probabilities."""
    done_ids: Tensor
    """(B, K, N) int64: finished sequences, best first."""
    done_scores: Tensor
    """(B, K) float: their scores, length penalty included."""
    done_lengths: Tensor
    """(B, K) int64: tokens of each."""
    is_done: Tensor
    """(B, K) bool: which of them exist."""
    can_improve: Tensor
    """(B, 1) bool: whether a running one may still beat a finished one."""


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The C best continuations of each prompt's beams, best first."""

    ids: Tensor
    """(B, C, N) int64."""
    scores: Tensor
    """(B, C) float."""
    sources: Tensor
    """(B, C) int64: the beam that each continues."""
    has_ended: Tensor
    """(B, C) bool."""


@torch.no_grad()
def search(
    model: Decodable,
    prompts: Prompts,
    settings: GenerationSettings,
    special: SpecialIds,
    has_stop: HasStop | None,
    ranks: Ranks,
) -> Beams:
    """Return each prompt's beams when no better ones are to be expected, on any rank.

    Every prompt is read once for each of its beams, so that the caches have a row a beam from the start.

    Args:
        model: In evaluation mode.
        prompts: B rows.
        settings: Of the call.
        special: Ids with a role.
        has_stop: Finds stop strings; None without any.
        ranks: Of the call.
    """
    count, device = settings.num_beams, prompts.ids.device
    rules = ScoreRules(settings, special.end, device)
    wide = prompts.repeated(count)
    mask = None if wide.mask is None else wide.mask.long()
    logits, state = model.prefill(wide.ids, mask, settings.max_new_tokens, **wide.marks, **wide.shared)
    history = first_history(wide, special, logits.shape[-1])
    beams = _first(len(prompts.ids), settings, special.pad, device)
    for num_written in range(settings.max_new_tokens):
        log_probs = rules(torch.log_softmax(logits.float(), dim=-1), history, num_written)
        found = _continue(beams, log_probs, num_written, max(2, 1 + len(special.end)) * count)
        has_ended = _endings(found, num_written, settings, special, has_stop)
        found = replace(found, has_ended=has_ended)
        beams = _finish(beams, found, num_written + 1, settings)
        beams, sources = _run_on(beams, found)
        beams = _look_ahead(beams, num_written + 1, settings)
        if ranks.have_all_ended(not _goes_on(beams, has_ended, settings)) or num_written + 1 == settings.max_new_tokens:
            break
        rows = (sources + torch.arange(len(sources), device=device).unsqueeze(1) * count).flatten()
        state.reorder(rows)
        chosen = beams.ids[:, :, num_written].flatten()
        if rules.needs_history:
            history = torch.cat([history[rows], chosen.unsqueeze(1)], dim=1)
        logits = model.decode(chosen, state)
    return beams


def _first(rows: int, settings: GenerationSettings, pad: int, device: torch.device) -> Beams:
    """Return beams that have written nothing; all but the first of a prompt's count for nothing, since they are the same."""
    count, length = settings.num_beams, settings.max_new_tokens
    scores = torch.zeros(rows, count, device=device)
    scores[:, 1:] = _NEVER
    ids = torch.full((rows, count, length), pad, device=device)
    return Beams(
        ids=ids,
        scores=scores,
        done_ids=ids,
        done_scores=torch.full_like(scores, _NEVER),
        done_lengths=torch.zeros(rows, count, dtype=torch.int64, device=device),
        is_done=torch.zeros(rows, count, dtype=torch.bool, device=device),
        can_improve=torch.ones(rows, 1, dtype=torch.bool, device=device),
    )


def _continue(beams: Beams, log_probs: Tensor, num_written: int, count: int) -> _Candidates:
    """Return the `count` best of all beams' continuations: enough that as many as there are beams do not end."""
    rows, num_beams = beams.scores.shape
    vocab_size = log_probs.shape[-1]
    sums = (log_probs.unflatten(0, (rows, num_beams)) + beams.scores.unsqueeze(-1)).flatten(1)
    scores, places = torch.topk(sums, min(count, sums.shape[1]))
    sources = places // vocab_size
    ids = _picked(beams.ids, sources)
    ids[:, :, num_written] = places % vocab_size
    return _Candidates(ids, scores, sources, torch.zeros_like(scores, dtype=torch.bool))


def _endings(
    found: _Candidates, num_written: int, settings: GenerationSettings, special: SpecialIds, has_stop: HasStop | None
) -> Tensor:
    """Return (B, C) bool of the candidates that end with their newest token."""
    newest = found.ids[:, :, num_written]
    if num_written + 1 == settings.max_new_tokens:
        return torch.ones_like(newest, dtype=torch.bool)
    ended = torch.isin(newest, torch.tensor(special.end, dtype=torch.int64, device=newest.device))
    if has_stop is not None:
        written = found.ids[:, :, : num_written + 1].tolist()
        stopped = [[has_stop(prompt, ids) for ids in rows] for prompt, rows in enumerate(written)]
        ended = ended | torch.tensor(stopped, device=ended.device)
    return ended


def _finish(beams: Beams, found: _Candidates, length: int, settings: GenerationSettings) -> Beams:
    """Return the beams with what has just ended among the finished ones; only the K best candidates may end."""
    count = settings.num_beams
    may_end = found.has_ended.clone()
    may_end[:, count:] = False
    scores = found.scores / length**settings.length_penalty
    is_full = beams.is_done.all(-1, keepdim=True) & (settings.early_stopping is True)
    for is_closed in (is_full, ~beams.can_improve, ~may_end):
        scores = scores + is_closed.float() * _NEVER
    best = torch.topk(torch.cat([beams.done_scores, scores], dim=1), count)[1]
    lengths = torch.full_like(found.sources, length)
    return replace(
        beams,
        done_ids=_picked(torch.cat([beams.done_ids, found.ids], dim=1), best),
        done_scores=_picked(torch.cat([beams.done_scores, scores], dim=1), best),
        done_lengths=_picked(torch.cat([beams.done_lengths, lengths], dim=1), best),
        is_done=_picked(torch.cat([beams.is_done, may_end], dim=1), best),
    )


def _run_on(beams: Beams, found: _Candidates) -> tuple[Beams, Tensor]:
    """Return the beams with the best candidates that have not ended, and (B, K) the beam that each continues."""
    scores = found.scores + found.has_ended.float() * _NEVER
    best = torch.topk(scores, beams.scores.shape[1])[1]
    return replace(beams, ids=_picked(found.ids, best), scores=_picked(scores, best)), _picked(found.sources, best)


def _look_ahead(beams: Beams, length: int, settings: GenerationSettings) -> Beams:
    """Return the beams with `can_improve` as transformers guesses it: exact only for "never" and penalties of 0."""
    is_patient = settings.early_stopping == "never" and settings.length_penalty > 0.0
    reachable = settings.max_new_tokens if is_patient else length
    best = beams.scores[:, :1] / reachable**settings.length_penalty
    worst = torch.where(beams.is_done, beams.done_scores.amin(1, keepdim=True), _NEVER)
    return replace(beams, can_improve=beams.can_improve & (best > worst).any(-1, keepdim=True))


def _goes_on(beams: Beams, has_ended: Tensor, settings: GenerationSettings) -> bool:
    """Return whether this rank's search is worth another step."""
    has_all = bool(beams.is_done.all()) and settings.early_stopping is True
    return bool(beams.can_improve.any()) and not has_all and not bool(has_ended.all())


def _picked(values: Tensor, places: Tensor) -> Tensor:
    """Return (B, M, ...) entries of (B, K, ...) `values` at (B, M) `places`."""
    index = places.reshape(*places.shape, *[1] * (values.dim() - 2)).expand(*places.shape, *values.shape[2:])
    return values.gather(1, index)
