"""What a language model writes for the rows of a data set, on any number of ranks, and how good it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.data import Tokenizer, micro_batches
from modelzoo.data.tasks import PromptRows, Recipe, encode_prompts
from modelzoo.data.tasks.choices import ChoiceRow
from modelzoo.errors import DataError
from modelzoo.generation import GenerationSettings, generate
from modelzoo.models.model import Model
from modelzoo.runtime import World
from modelzoo.training.evaluation.answers import AnswerMetrics
from modelzoo.training.evaluation.choosing import choice_metrics, choice_rows, written_choice
from modelzoo.training.evaluation.forward_all import EvaluationStopped

__all__ = ["MAX_NEW_TOKENS", "WritingSet", "writing_set", "written_metrics", "written_texts"]

MAX_NEW_TOKENS = 128
"""Written for a row where nobody says how many."""


@dataclass(frozen=True, slots=True)
class WritingSet:
    """Rows to write for."""

    prompts: PromptRows
    tokenizer: Tokenizer
    max_new_tokens: int
    batch_tokens: int
    """Most tokens of one batch on one process, those that are written included; a longer row stands alone."""
    choices: list[ChoiceRow] | None = None
    """The rows, where they have choices: what is written is one of them, or wrong."""


def writing_set(
    rows: Sequence[Mapping[str, Any]], recipe: Recipe, model: Model, *, max_new_tokens: int, batch_tokens: int
) -> WritingSet:
    """Return rows as prompts that leave the model room to write.

    Args:
        rows: At least one.
        recipe: How they are encoded.
        model: Whose longest sequence bounds prompt and text together, unless it has an encoder.
        max_new_tokens: Most tokens written for a row.
        batch_tokens: Most tokens of a batch.

    Raises:
        DataError: If a prompt leaves no room, or the answers are wanted and the rows have none.
    """
    prompts = encode_prompts(rows, recipe)
    if recipe.labelled and not prompts.answers:
        raise DataError(
            f"{recipe.source}: plain texts have no answers to compare with; leave evaluation.max_new_tokens out, or give rows with "
            "prompts and what is to be written"
        )
    if model.task == "causal_lm":
        for row, ids in enumerate(prompts.ids):
            if len(ids) + max_new_tokens > model.max_text_length or not ids:
                raise DataError(
                    f"{recipe.source}: row {row + 1}: a prompt of {len(ids)} tokens and max_new_tokens={max_new_tokens} do not fit "
                    f"1 to {model.max_text_length} tokens; shorten the prompt, or lower max_new_tokens"
                )
    choices = choice_rows(rows, recipe.task, recipe.columns, source=recipe.source) if recipe.labelled else None
    return WritingSet(prompts, recipe.tokenizer, max_new_tokens, batch_tokens, choices)


def written_texts(
    model: Model,
    samples: WritingSet,
    world: World,
    *,
    wants_stop: Callable[[], bool] | None = None,
    prepack: bool | None = None,
) -> list[str]:
    """Return what the model writes for each row, the likeliest token each time; the same on every rank. Collective.

    All ranks write the same number of batches: one that has none left writes the shortest again and gives nothing.

    Args:
        model: Plain or sharded; it keeps its mode.
        samples: The rows.
        world: The processes, which share the rows.
        wants_stop: Asked on every rank between batches; None never stops.
        prepack: As of `GenerationSettings`.

    Raises:
        EvaluationStopped: Any rank wanted to stop; all raise it.
    """
    ids = samples.prompts.ids
    settings = GenerationSettings(max_new_tokens=samples.max_new_tokens, eos_token_id=samples.prompts.end_ids, prepack=prepack)
    lengths = [len(row) + samples.max_new_tokens for row in ids]
    pieces = micro_batches(range(len(ids)), lengths, None, samples.batch_tokens)
    found: dict[int, str] = {}
    for start in range(0, len(pieces), world.data_size):
        if wants_stop is not None and world.sum([wants_stop()])[0]:
            raise EvaluationStopped
        place = start + world.data_rank
        piece = pieces[place] if place < len(pieces) else pieces[-1]
        texts = generate(model, [ids[row] for row in piece], tokenizer=samples.tokenizer, settings=settings).texts
        assert texts is not None
        if place < len(pieces):
            found |= dict(zip(piece, texts, strict=True))
    everything: dict[int, str] = {}
    for part in world.gather(found):
        everything |= part
    return [everything[row] for row in range(len(ids))]


def written_metrics(
    model: Model, samples: WritingSet, world: World, *, wants_stop: Callable[[], bool] | None = None
) -> dict[str, float]:
    """Return `exact_match` and `f1` of what the model writes against the best of each row's answers. Collective.

    Where the rows have choices, what is written is mapped back to them, and the metrics are those of `choice_metrics`.

    Args:
        model: As of `written_texts`.
        samples: With answers.
        world: The processes.
        wants_stop: As of `written_texts`.

    Raises:
        EvaluationStopped: As `written_texts`.
    """
    metrics = AnswerMetrics()
    texts = written_texts(model, samples, world, wants_stop=wants_stop, prepack=False)
    if samples.choices is not None:
        chosen = [written_choice(text, row) for text, row in zip(texts, samples.choices, strict=True)]
        return choice_metrics(samples.choices, chosen, texts)
    for text, answers in zip(texts, samples.prompts.answers, strict=True):
        metrics.update(text, answers)
    return metrics.values()
