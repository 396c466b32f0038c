"""From settings to what a run needs: tokenizer, data sets, label names and model. No process talks to another here."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modelzoo import hub
from modelzoo.config import RunSettings
from modelzoo.data import Samples, TokenizedDataset, Tokenizer, build_dataset, load_tokenizer, read_rows
from modelzoo.data.labels import LabelTable, collect_names
from modelzoo.data.published import published_rows
from modelzoo.data.store import StoredDataset, is_store
from modelzoo.data.tasks import Recipe, find_columns, task_spec
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.auto import find_pretrained
from modelzoo.models.model import Model
from modelzoo.models.pretrained import Pretrained
from modelzoo.training.adapting import skeleton_for_run
from modelzoo.training.evaluation.choosing import choice_rows, choosing_set, metric_missing
from modelzoo.training.evaluation.evaluate import EvaluationSet
from modelzoo.training.evaluation.writing import writing_set
from modelzoo.training.image_runs import image_dataset, image_label_names, image_rows, reads_images
from modelzoo.training.label_warnings import label_warnings
from modelzoo.training.limits import has_labels, limits_of, require_plain_inputs, scored_size

__all__ = ["Prepared", "label_column", "prepare", "source_name"]

Rows = Sequence[Mapping[str, Any]]

SPLITS = ("train", "validation", "test")
GENERIC_LABEL = re.compile(r"LABEL_\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What is ready before the processes meet."""

    pretrained: Pretrained[Model]
    """The checkpoint, whose weights are read when the processes have met."""
    train: Samples
    evaluation: EvaluationSet | None
    test: EvaluationSet | None
    data: dict[str, Any]
    """Sources, fingerprints and reports, as they are written to data.json."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """What looks wrong without being certain."""

    @property
    def fingerprint(self) -> str:
        """The sha256 of the training and validation data as the model sees them."""
        prints = [facts["fingerprint"] for name, facts in self.data.items() if name != "test"]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()


def prepare(settings: RunSettings) -> Prepared:
    """Read and tokenize the data for a model with a head for its labels, whose weights are not read yet.

    Rows come first: a wrong column or label is found before any weight is read.

    Raises:
        InputError: Data, tokenizer or config cannot be used; the message names file and row or key.
    """
    folder = hub.resolve(settings.model.name, revision=settings.model.revision, allow_pickle=settings.model.allow_pickle)
    has_images = reads_images(folder)
    tokenizer = None if has_images else load_tokenizer(folder)
    read = image_rows if has_images else _read
    rows = {split: some for split in SPLITS if (some := read(settings, split)) is not None}
    names = _several(_label_names(settings, rows["train"], folder, tokenizer), settings)
    pretrained = find_pretrained(
        folder,
        task=settings.model.task,
        label_names=names,
        dtype=torch.float32,
        allow_pickle=settings.model.allow_pickle,
        dropout=settings.model.dropout,
    )
    model = skeleton_for_run(settings, pretrained)
    require_plain_inputs(model)
    datasets = {split: _dataset(settings, split, some, tokenizer, model, folder) for split, some in rows.items()}
    samples = {
        split: _samples(settings, split, datasets[split], rows[split], model, tokenizer) for split in datasets if split != "train"
    }
    notes = [f"{split}: {dataset.describe()}" for split, dataset in datasets.items()]
    if settings.data.max_length > model.max_text_length and not has_images:
        notes.append(
            f"data.max_length={settings.data.max_length} is more than the model's {model.max_text_length} tokens, which are used"
        )
    return Prepared(
        pretrained=pretrained,
        train=datasets["train"],
        evaluation=samples.get("validation"),
        test=samples.get("test"),
        data={
            split: {
                "source": source_name(settings, split),
                "fingerprint": dataset.fingerprint,
                "report": dataclasses.asdict(dataset.report),
                **({"form": dataset.form} if dataset.form else {}),
                **_columns(settings, split, rows[split], is_text=tokenizer is not None),
            }
            for split, dataset in datasets.items()
        },
        notes=tuple(notes),
        warnings=tuple(label_warnings(datasets, rows, _labels_of(settings, rows["train"], is_text=not has_images))),
    )


def _dataset(settings: RunSettings, split: str, rows: Rows, tokenizer: Tokenizer | None, model: Model, folder: Path) -> Samples:
    """Tokenize a split with the labels of the model, or cut a token store into samples; or take images."""
    if tokenizer is None:
        return image_dataset(rows, model, folder, source=source_name(settings, split))
    recipe, limits = _recipe(settings, split, tokenizer, model), limits_of(model)
    file = getattr(settings.data, split)
    if file is not None and is_store(file):
        return StoredDataset(file, recipe, dataclasses.replace(limits, max_rows=settings.data.max_rows))
    return TokenizedDataset.from_rows(rows, recipe, limits)


def _recipe(settings: RunSettings, split: str, tokenizer: Tokenizer, model: Model) -> Recipe:
    """Return how the rows of a split are encoded."""
    return Recipe(
        task=settings.model.task,
        tokenizer=tokenizer,
        max_length=min(settings.data.max_length, model.max_text_length),
        max_target_length=settings.data.max_target_length,
        template=settings.data.template,
        columns=settings.data.columns,
        label_names=model.config.label_names if has_labels(model) else None,
        truncation=settings.data.truncation,
        source=source_name(settings, split),
        seed=settings.train.seed,
    )


def _samples(
    settings: RunSettings, split: str, dataset: Samples, rows: Rows, model: Model, tokenizer: Tokenizer | None
) -> EvaluationSet:
    """Return a split as it is evaluated."""
    if tokenizer is None:
        return EvaluationSet(split, dataset, rows, {}, settings.evaluation.batch_tokens)
    wanted, writing, choosing = settings.evaluation.max_new_tokens, None, None
    recipe = _recipe(settings, split, tokenizer, model)
    if dataset.form == "choice" or settings.model.task == "multiple_choice":
        found = choice_rows(rows, settings.model.task, settings.data.columns, source=recipe.source)
        if found is not None and (error := metric_missing(settings.metric, found, recipe.source)) is not None:
            raise error
        if wanted is None:
            choosing = choosing_set(
                rows,
                recipe,
                limits_of(model),
                batch_tokens=settings.evaluation.batch_tokens,
                vocab_size=scored_size(model),
            )
    if wanted is not None:
        if not rows:
            raise ConfigError(
                f"evaluation.max_new_tokens={wanted}: data.{split} is a token store, which holds no prompts; add "
                "evaluation.max_new_tokens=null, or give a file of rows"
            )
        batch_tokens = settings.evaluation.batch_tokens
        writing = writing_set(rows, recipe, model, max_new_tokens=wanted, batch_tokens=batch_tokens)
    return EvaluationSet(
        name=split,
        dataset=dataset,
        rows=rows,
        columns=settings.data.columns,
        batch_tokens=settings.evaluation.batch_tokens,
        vocab_size=scored_size(model),
        writing=writing,
        choosing=choosing,
    )


def _labels_of(settings: RunSettings, rows: Rows, *, is_text: bool) -> str | None:
    """Return the column of the labels of rows, if they have names."""
    if not is_text or not rows:
        return "label" if rows else None
    return label_column(rows, settings.model.task, settings.data.columns, source_name(settings, "train"))


def _columns(settings: RunSettings, split: str, rows: Rows, *, is_text: bool) -> dict[str, Any]:
    """Return the column of each role of rows of texts, as it is written to data.json."""
    if not rows or not is_text:
        return {}
    return {"columns": find_columns(rows, settings.model.task, settings.data.columns, source=source_name(settings, split))}


def source_name(settings: RunSettings, split: str) -> str:
    """Return what a split is called in messages: the file's name, or the data set's with the split."""
    file = getattr(settings.data, split)
    if file is not None:
        return Path(file).name
    name = settings.data.name or ""
    return f"{Path(name).name if Path(name).is_absolute() else name} {split}"


def label_column(rows: Rows, task: str, columns: Mapping[str, str], source: str) -> str | None:
    """Return the column of the labels, or None for a task without label names.

    Raises:
        DataError: There is none; the message shows the columns that there are.
    """
    role = task_spec(task).label_role
    return None if role is None else find_columns(rows, task, columns, source=source)[role]


def _read(settings: RunSettings, split: str) -> list[dict[str, Any]] | None:
    """Return the rows of a split, none of which are in memory for a token store; None where the settings name none."""
    data = settings.data
    file = getattr(data, split)
    if file is not None:
        return [] if is_store(file) else _of_form(settings, split, read_rows(file, max_rows=data.max_rows))
    if data.name is None or split == "test":
        return None
    rows = read_rows(data.name, split="train" if split == "train" else "validation", max_rows=data.max_rows)
    return _of_form(settings, split, rows)


def _of_form(settings: RunSettings, split: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the form that the settings name as rows of the task."""
    form = settings.data.form
    return rows if form is None else published_rows(rows, form, settings.model.task, source=source_name(settings, split))


def _label_names(settings: RunSettings, rows: Rows, folder: Path, tokenizer: Tokenizer | None) -> tuple[str, ...] | None:
    """Return the label names by id: the settings', the checkpoint's if the data's labels are among them, or the data's."""
    if tokenizer is None:
        return image_label_names(settings, rows)
    if task_spec(settings.model.task).label_role is None:
        return None
    if settings.data.label_names is not None:
        return tuple(settings.data.label_names)
    source = source_name(settings, "train")
    column = label_column(rows, settings.model.task, settings.data.columns, source)
    values = [value for row in rows for value in _as_list(row.get(column or ""))]
    known = _checkpoint_labels(folder)
    try:
        if known is not None and _are_among(values, known):
            return known
        return collect_names(values, len(rows))
    except ValueError:
        # the data set's own check names the row and the value
        dataset = build_dataset(
            rows,
            task=settings.model.task,
            tokenizer=tokenizer,
            columns=settings.data.columns,
            max_length=settings.data.max_length,
            truncation=settings.data.truncation,
            source=source,
        )
        return dataset.label_names


def _several(names: tuple[str, ...] | None, settings: RunSettings) -> tuple[str, ...] | None:
    """Return the label names, of which there must be two: one label alone has a loss of 0 from the start."""
    if names is not None and len(names) == 1:
        raise DataError(
            f"{source_name(settings, 'train')}: expected at least two different labels, found {names[0]!r} alone; set "
            "data.columns.label to the column of the labels, or data.label_names to all labels"
        )
    return names


def _are_among(values: Sequence[Any], names: Sequence[str]) -> bool:
    table = LabelTable(names)
    try:
        for value in values:
            table.id(value)
    except ValueError:
        return False
    return True


def _checkpoint_labels(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the checkpoint's labels, unless they are LABEL_0, LABEL_1, ... or none."""
    found = hub.read_config(folder).get("id2label")
    if not isinstance(found, dict) or not found:
        return None
    try:
        names = tuple(str(found[key]) for key in sorted(found, key=int))
    except ValueError:
        return None
    is_generic = all(GENERIC_LABEL.fullmatch(name) for name in names)
    return None if is_generic or len(set(names)) != len(names) else names


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
