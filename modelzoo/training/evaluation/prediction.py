"""Prediction: what a model says about rows, in their order."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from modelzoo.data import Samples, TokenizedDataset, build_dataset
from modelzoo.data.tasks import find_columns, task_spec
from modelzoo.errors import DataError
from modelzoo.models.model import Model, Task
from modelzoo.runtime import connect, failing_together
from modelzoo.training.evaluation.choosing import choosing_set, likeliest
from modelzoo.training.evaluation.forward_all import ForwardBatch, evaluating, forward_all
from modelzoo.training.evaluation.spans import Span, best_spans, better_span
from modelzoo.training.evaluation.writing import MAX_NEW_TOKENS, writing_set, written_texts
from modelzoo.training.image_runs import image_dataset
from modelzoo.training.limits import has_labels, limits_of, scored_size
from modelzoo.training.opening import OpenedModel, given_rows, open_model

__all__ = ["predict"]

Rows = Sequence[Mapping[str, Any]]

IGNORED = -100
NUM_TOKENS = 5
"""Candidates shown for a masked token."""


def predict(
    model_or_run: Model | str | os.PathLike[str],
    rows: Rows | str | os.PathLike[str],
    *,
    split: str | None = None,
    task: Task | None = None,
    columns: Mapping[str, str] | None = None,
    max_length: int | None = None,
    batch_tokens: int = 8192,
    max_new_tokens: int | None = None,
    allow_pickle: bool = False,
) -> list[dict[str, Any]]:
    """Return one prediction a row, in the order of the rows; labels in the rows are not looked at.

    Under torchrun the processes share the rows, and each returns all predictions. The longest rows come first.

    Args:
        model_or_run: A model, the folder of a finished run, a Hugging Face folder, or a hub id.
        rows: Rows, a file, or the name of a data set.
        split: Which part of a data set or folder.
        task: Which head; None for the one that the checkpoint was saved with.
        columns: Column by role; None for those of the run, or found by name.
        max_length: Longest sequence in tokens; longer ones are cut, contexts of questions into windows. None for the run's, or 512.
        batch_tokens: Most tokens of one forward on one process.
        max_new_tokens: Most tokens that a language model writes for a row; None for those of the run, or 128.
        allow_pickle: Whether a pytorch_model.bin may be read.

    Returns:
        classification: label, probability, probabilities by label. token_classification: words, and labels, one a word (None for
        words that were cut off). question_answering: answer, score. masked_lm: masks, the likeliest tokens of each mask with their
        probabilities. multiple_choice: choice, label (its number), probabilities, one a choice. causal_lm and seq2seq_lm: text, the
        likeliest token each time; for a run on chats, rows with a text alone are questions of a user; for a run on rows with
        choices that compared likelihoods: choice, label, log_likelihoods, one a choice.
    """
    opened = open_model(model_or_run, task=task, allow_pickle=allow_pickle)
    some, source = given_rows(opened, rows, split, None)
    wanted = opened.max_new_tokens(max_new_tokens)
    if opened.form == "choice" and wanted is None:
        return _chosen(opened, some, columns, max_length, source, batch_tokens)
    if task_spec(opened.model.task).prompts is not None:
        return _written(opened, some, columns, max_length, source, wanted or MAX_NEW_TOKENS, batch_tokens)
    has_images = opened.reads_images
    opened.require_texts(some, columns, source)
    roles = {} if has_images else _roles(opened, some, columns, source)
    with connect() as world, failing_together(world, "the prediction"):
        if has_images:
            dataset: Samples = image_dataset(some, opened.model, opened.folder, source=source, labelled=False)
        else:
            dataset = _dataset(opened, some, roles, source, opened.max_length(max_length))
        model = opened.model.to(world.device)
        found: dict[int, Any] = {}
        with evaluating(model):
            for batch in forward_all(model, dataset, world, batch_tokens=batch_tokens, vocab_size=scored_size(model)):
                _add(found, _read(opened, dataset, batch))
        everything: dict[int, Any] = {}
        for part in world.gather(found):
            _add(everything, part.items())
    return [_shown(opened.model.task, some[row], roles, everything.get(row)) for row in range(len(some))]


def _written(
    opened: OpenedModel,
    rows: Rows,
    columns: Mapping[str, str] | None,
    max_length: int | None,
    source: str,
    max_new_tokens: int,
    batch_tokens: int,
) -> list[dict[str, Any]]:
    """Return what a language model writes for each row."""
    known = _known(opened, columns)
    if opened.form == "chat" and not known and "text" in rows[0] and "messages" not in rows[0]:
        rows = [{"instruction": row.get("text")} for row in rows]
    recipe = opened.recipe(columns=known, max_length=max_length, source=source, labelled=False)
    samples = writing_set(rows, recipe, opened.model, max_new_tokens=max_new_tokens, batch_tokens=batch_tokens)
    with connect() as world, failing_together(world, "the prediction"):
        return [{"text": text} for text in written_texts(opened.model.to(world.device), samples, world)]


def _chosen(
    opened: OpenedModel, rows: Rows, columns: Mapping[str, str] | None, max_length: int | None, source: str, batch_tokens: int
) -> list[dict[str, Any]]:
    """Return the choice that a language model finds likeliest for each row."""
    recipe = opened.recipe(columns=_known(opened, columns), max_length=max_length, source=source, labelled=False)
    model = opened.model
    samples = choosing_set(rows, recipe, limits_of(model), batch_tokens=batch_tokens, vocab_size=scored_size(model))
    if samples is None:
        raise DataError(f"{source}: the run learned to choose, but these rows have no choices; give a column of choices")
    with connect() as world, failing_together(world, "the prediction"):
        chosen = likeliest(model.to(world.device), samples, world)
    return [
        {"choice": row.names[number].strip(), "label": number, "log_likelihoods": values}
        for row, (number, values) in zip(samples.rows, chosen, strict=True)
    ]


def _add(found: dict[int, Any], more: Iterable[tuple[int, Any]]) -> None:
    """Add what the model says of rows; of a question's windows the best answer stays."""
    for row, value in more:
        found[row] = better_span(found[row], value) if isinstance(value, Span) and row in found else value


def _known(opened: OpenedModel, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the columns without those of labels, which rows to predict need not have."""
    left_out = task_spec(opened.model.task).target_roles
    return {role: column for role, column in opened.columns(columns).items() if role not in left_out}


def _roles(opened: OpenedModel, rows: Rows, columns: Mapping[str, str] | None, source: str) -> dict[str, str]:
    """Return the column of each role but those of targets."""
    return find_columns(rows, opened.model.task, _known(opened, columns), source=source, labelled=False, asker="call")


def _dataset(opened: OpenedModel, rows: Rows, roles: Mapping[str, str], source: str, max_length: int) -> TokenizedDataset:
    """Tokenize rows without targets; words get a label each, which marks their first token."""
    model = opened.model
    is_words = model.task == "token_classification"
    if is_words:
        first = opened.label_names[0]
        rows = [{"tokens": row[roles["tokens"]], "tags": [first] * len(row[roles["tokens"]])} for row in rows]
    return build_dataset(
        rows,
        task=model.task,
        tokenizer=opened.tokenizer,
        columns={"tokens": "tokens", "tags": "tags"} if is_words else roles,
        label_names=opened.label_names if has_labels(model) else None,
        max_length=max_length,
        truncation=opened.settings.data.truncation if opened.settings is not None else "longest_first",
        limits=limits_of(model),
        source=source,
        labelled=is_words,
    )


def _read(opened: OpenedModel, dataset: Samples, batch: ForwardBatch) -> Iterator[tuple[int, Any]]:
    """Give the row of each sample of a forward, and what the model says of it."""
    output, rows = batch.output, [dataset.rows[index] for index in batch.indices]
    names = opened.label_names
    if opened.model.task == "question_answering":
        offsets = [dataset.context_offsets(index) for index in batch.indices]
        yield from zip(rows, best_spans(output.start_logits, output.end_logits, offsets), strict=True)
        return
    logits = output.logits.float()
    if opened.model.task == "multiple_choice":
        for row, shares, ids in zip(rows, logits.softmax(-1).tolist(), batch.tensors["attention_mask"].any(-1), strict=True):
            yield row, shares[: int(ids.sum())]
    elif opened.model.task == "classification":
        for row, shares in zip(rows, logits.softmax(-1).tolist(), strict=True):
            best = max(range(len(names)), key=lambda label: shares[label])
            shown = dict(zip(names, shares, strict=True))
            yield row, {"label": names[best], "probability": shares[best], "probabilities": shown}
    elif opened.model.task == "token_classification":
        labels = batch.tensors["labels"]
        for row, best, marks in zip(rows, logits.argmax(-1), labels, strict=True):
            yield row, [names[label] for label in best[marks != IGNORED].tolist()]
    else:
        for row, scores, ids in zip(rows, logits, batch.tensors["input_ids"], strict=True):
            shares, tokens = scores[ids == opened.tokenizer.mask_id].softmax(-1).topk(NUM_TOKENS)
            yield (
                row,
                [
                    [
                        {"token": text, "probability": share}
                        for text, share in zip(opened.tokenizer.tokens(some), values, strict=True)
                    ]
                    for some, values in zip(tokens.tolist(), shares.tolist(), strict=True)
                ],
            )


def _shown(task: str, row: Mapping[str, Any], roles: Mapping[str, str], value: Any) -> dict[str, Any]:
    if task == "question_answering":
        context = str(row[roles["context"]])
        return {"answer": value.text(context, may_be_empty=True), "score": value.score}
    if task == "token_classification":
        words = list(row[roles["tokens"]])
        labels = value or []
        return {"words": words, "labels": [*labels, *[None] * (len(words) - len(labels))]}
    if task == "multiple_choice":
        best = value.index(max(value))
        return {"choice": row[roles.get("names", roles["choices"])][best], "label": best, "probabilities": value}
    return {"masks": value or []} if task == "masked_lm" else dict(value)
