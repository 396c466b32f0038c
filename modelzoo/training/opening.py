"""Opening what was trained: a run folder, a Hugging Face folder or hub id, or a model in memory, with its tokenizer."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modelzoo import hub
from modelzoo.config import METRICS, RunSettings, read_settings
from modelzoo.data import Tokenizer, load_tokenizer, read_rows
from modelzoo.data.published import published_rows
from modelzoo.data.tasks import Recipe, find_columns, task_spec
from modelzoo.errors import CheckpointError, ConfigError, DataError, InputError
from modelzoo.models.adapted import tokenizer_folder
from modelzoo.models.auto import from_pretrained
from modelzoo.models.image_config import ImageConfig
from modelzoo.models.model import Model, Task
from modelzoo.training.forms import trained_columns, trained_form
from modelzoo.training.image_runs import given_images
from modelzoo.training.limits import has_labels

__all__ = ["OpenedModel", "given_rows", "open_model"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class OpenedModel:
    """A model ready for evaluation, and how its data were read."""

    model: Model
    folder: Path
    """With the tokenizer, or the settings of an image processor."""
    settings: RunSettings | None
    """Of the run that it is from, if it is from one."""
    form: str = ""
    """Of the run's training rows, if they had one: text, completion, chat, pair."""
    trained_columns: Mapping[str, str] | None = None
    """Column by role of the run's training rows, where that is known."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read when it is asked for: a model for images has none."""
        return load_tokenizer(self.folder)

    @property
    def reads_images(self) -> bool:
        """Whether the model takes pixels."""
        return isinstance(self.model.config, ImageConfig)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels by id, LABEL_0, ... where the model has none."""
        config = self.model.config
        return config.label_names or tuple(f"LABEL_{number}" for number in range(config.num_labels))

    def columns(self, given: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return the given columns, or those of the run."""
        if given is not None:
            return given
        return self.settings.data.columns if self.settings is not None else {}

    def max_length(self, given: int | None) -> int:
        """Return the longest sequence in tokens: the given one, the run's, or 512, and at most the model's."""
        wanted = given if given is not None else self.settings.data.max_length if self.settings is not None else 512
        return min(wanted, self.model.max_text_length)

    def max_new_tokens(self, given: int | None) -> int | None:
        """Return how many tokens are written for a row at most: the given ones, or the run's.

        Raises:
            ConfigError: The model writes no text.
        """
        if given is not None and task_spec(self.model.task).prompts is None:
            raise ConfigError(f"max_new_tokens={given}: this model is for {self.model.task} and writes no text; leave it out")
        return given if given is not None else self.settings.evaluation.max_new_tokens if self.settings is not None else None

    def recipe(self, *, columns: Mapping[str, str] | None, max_length: int | None, source: str, labelled: bool = True) -> Recipe:
        """Return how rows are encoded for this model, as its run's were.

        Args:
            columns: Column by role; None for the run's.
            max_length: Tokens of the longest item; None for the run's.
            source: What the rows are called in errors.
            labelled: Whether the rows have targets.
        """
        data = self.settings.data if self.settings is not None else None
        return Recipe(
            task=self.model.task,
            tokenizer=self.tokenizer,
            max_length=self.max_length(max_length),
            max_target_length=data.max_target_length if data is not None else None,
            template=data.template if data is not None else None,
            columns=self.columns(columns),
            label_names=self.label_names if has_labels(self.model) else None,
            truncation=data.truncation if data is not None else "longest_first",
            source=source,
            labelled=labelled,
            seed=self.settings.train.seed if self.settings is not None else 0,
            asker="call",
        )

    def require_texts(self, rows: Rows, columns: Mapping[str, str] | None, source: str) -> None:
        """Refuse single texts for a classifier that was trained on pairs, and pairs for one that was not.

        Args:
            rows: To be read.
            columns: Column by role, as they are given.
            source: What the rows are called.

        Raises:
            DataError: They are of the other kind; or a column is missing.
        """
        if self.trained_columns is None or self.model.task != "classification" or self.reads_images:
            return
        left_out = task_spec(self.model.task).target_roles
        told = {role: column for role, column in self.columns(columns).items() if role not in left_out}
        found = find_columns(rows, self.model.task, told, source=source, labelled=False, asker="call")
        trained = [self.trained_columns[role] for role in ("text_a", "text_b") if role in self.trained_columns]
        if len(trained) == 2 and "text_b" not in found:
            raise DataError(
                f"{source}: the model was trained on pairs of texts ({' and '.join(trained)}), but there is one text a row "
                f"({found['text_a']}); give the second one: --pair TEXT beside each --text, or columns.text_b=COLUMN of a file"
            )
        if len(trained) == 1 and "text_b" in found:
            raise DataError(
                f"{source}: the model was trained on single texts ({trained[0]}), but there are two a row ({found['text_a']} and "
                f"{found['text_b']}); leave --pair out, or choose one with columns.text_a=COLUMN"
            )


def open_model(
    model_or_run: Model | str | os.PathLike[str], *, task: Task | None = None, allow_pickle: bool = False
) -> OpenedModel:
    """Return a model in evaluation mode with its tokenizer.

    Args:
        model_or_run: A model, the folder of a finished run, a Hugging Face folder, or a hub id.
        task: Which head; None for the one that the checkpoint was saved with.
        allow_pickle: Whether a pytorch_model.bin may be read.

    Raises:
        InputError: The run is not finished.
        CheckpointError: The checkpoint has no head for the task, so what it says would be noise.
        ConfigError: The task has no evaluation.
    """
    settings, form, columns = None, "", None
    if isinstance(model_or_run, Model):
        model = model_or_run
        if model.source_folder is None:
            raise InputError(
                f"{type(model).__name__}: was not loaded from a folder, so it has no tokenizer; save it and give the folder"
            )
        folder = model.source_folder
    else:
        folder = Path(model_or_run)
        if (folder / "resolved.yaml").is_file():
            settings = read_settings(folder / "resolved.yaml")
            if not (folder / "final").is_dir():
                raise InputError(f"{folder}: the run is not finished, it has no final/; continue it with: modelzoo resume {folder}")
            form = trained_form(folder)
            columns = trained_columns(folder)
            folder = folder / "final"
        else:
            columns = trained_columns(folder.parent) if folder.name == "final" else None
            folder = hub.resolve(model_or_run, allow_pickle=allow_pickle)
        model = from_pretrained(folder, task=task, allow_pickle=allow_pickle, dtype=torch.float32)
        new = model.load_report.new if model.load_report is not None else ()
        if new:
            raise CheckpointError(f"{folder}: has no head for {model.task} ({', '.join(new[:4])} are missing); fine-tune it first")
        folder = tokenizer_folder(folder, model)
    if model.task not in METRICS:
        raise ConfigError(f"{folder}: task {model.task!r}: expected one of {', '.join(METRICS)}; give task=")
    opened = OpenedModel(model, folder, settings, form, columns)
    if not opened.reads_images:
        _ = opened.tokenizer  # what is wrong with it is said now
    return opened


def given_rows(
    opened: OpenedModel, rows: Rows | str | os.PathLike[str] | None, split: str | None, max_rows: int | None
) -> tuple[Rows, str]:
    """Return the rows to work on, and what they are called in messages; None means the validation rows of the run.

    Raises:
        InputError: None was given for a model that is from no run, or a run without validation rows.
        DataError: There are no rows.
    """
    if rows is None:
        data = opened.settings.data if opened.settings is not None else None
        if data is None or (data.validation is None and data.name is None):
            raise InputError("expected rows to evaluate on, found none; give a file, a data set or a list of rows")
        file = data.validation
        rows, split = (file, None) if file is not None else (data.name or "", split or "validation")
        max_rows = data.max_rows if max_rows is None else max_rows
    if isinstance(rows, str | os.PathLike):
        place = os.fspath(rows)
        if opened.reads_images:
            return given_images(Path(place), split=split, max_rows=max_rows), Path(place).name
        return _of_form(opened, read_rows(place, split=_split(split), max_rows=max_rows), Path(place).name), Path(place).name
    if not rows:
        raise DataError("rows: expected at least one row, found none")
    return _of_form(opened, rows[:max_rows], "rows"), "rows"


def _of_form(opened: OpenedModel, rows: Rows, source: str) -> Rows:
    """Return rows of the form that the run's had as rows of the task."""
    form = opened.settings.data.form if opened.settings is not None else None
    if form is None:
        return rows
    return published_rows(rows, form, opened.model.task, source=source, advice=f"the run read rows of {form}: give a file of them")


def _split(split: str | None) -> Any:
    """Return the split as the data part takes it, which checks it."""
    return split
