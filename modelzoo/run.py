"""Training runs in Python: settings from a recipe and changes, a run from settings, and what became of it.

The commands `train`, `resume`, `eval`, `predict` and `plan` are these functions and their text.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modelzoo.config import RunSettings, change_settings, dump_settings, load_settings, read_settings, resolve_settings
from modelzoo.errors import CheckpointError, InputError
from modelzoo.hub.publish import copy_folder
from modelzoo.launch import is_started, train_on_ranks
from modelzoo.models.adapted import write_merged
from modelzoo.models.auto import from_pretrained
from modelzoo.models.model import Model, Task
from modelzoo.plan import Machine, TrainingPlan
from modelzoo.plan import plan_training as plan_settings
from modelzoo.training import Progress, RunResult, evaluate, predict
from modelzoo.training import resume as resume_run
from modelzoo.training import train as start_run
from modelzoo.training.progress.choice import choose_progress
from modelzoo.training.progress.notebook import is_notebook
from modelzoo.training.row_lengths import RowLengths, row_lengths
from modelzoo.verification import verify

__all__ = ["Run", "plan_training", "resume", "settings", "train"]

Rows = Sequence[Mapping[str, Any]]


class Run:
    """A run in its folder, finished or not: what it was asked for, how good it became, and what to do with it.

    Args:
        folder: Of a run that `train` or the command made.

    Raises:
        InputError: It is not the folder of a run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / "resolved.yaml").is_file():
            raise InputError(f"{self.folder}: expected the folder of a run, with resolved.yaml; found none")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def settings(self) -> RunSettings:
        """Every setting, as it was decided when the run began."""
        return read_settings(self.folder / "resolved.yaml")

    @property
    def result(self) -> RunResult | None:
        """How it ended; None for a run that is not finished."""
        file, final = self.folder / "result.json", self.folder / "final"
        if not (file.is_file() and final.is_dir()):
            return None
        values = json.loads(file.read_text(encoding="utf-8"))
        return RunResult.from_json(values, self.folder, final) if values.get("stopped") == "finished" else None

    @property
    def is_finished(self) -> bool:
        """Whether there is a result; if not, `resume` goes on."""
        return self.result is not None

    @property
    def best(self) -> float | None:
        """The best value of the metric that decides about the weights; None without an evaluation, or while unfinished."""
        return None if self.result is None else self.result.best_metric

    @property
    def final(self) -> Path:
        """The result: a plain Hugging Face folder with its tokenizer.

        Raises:
            InputError: The run is not finished.
        """
        if not self.is_finished:
            raise InputError(f"{self.folder}: the run is not finished; continue it with: modelzoo resume {self.folder}")
        return self.folder / "final"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: every step and every evaluation, in their order."""
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []

    @property
    def measured(self) -> dict[str, Any]:
        """The values of report.json: memory and time of rank 0, and under `plan` what was predicted; empty while unfinished."""
        file = self.folder / "report.json"
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return values

    def model(self) -> Model:
        """Load the result, in evaluation mode.

        Raises:
            InputError: The run is not finished.
        """
        return from_pretrained(self.final)

    def to_transformers(self) -> Any:
        """Load the result with transformers, as others will: an instance of its own class, in evaluation mode.

        Raises:
            InputError: The run is not finished, its result is an adapter, or transformers has no class for it.
        """
        import transformers

        if (self.final / "adapter_config.json").is_file():
            raise InputError(f"{self.final}: holds an adapter; export(FOLDER) writes it with its base as a plain model")
        names = json.loads((self.final / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
        kind = getattr(transformers, names[0], None)
        if kind is None:
            raise InputError(f"{self.final}: transformers has no class {names[0]!r}; use model()")
        return kind.from_pretrained(self.final, local_files_only=True).eval()

    def evaluate(self, rows: Rows | str | os.PathLike[str] | None = None, *, split: str | None = None) -> dict[str, float]:
        """Return the metrics of the result.

        Args:
            rows: Rows, a file, or the name of a data set; None for the validation rows of the run.
            split: Which part of a data set or folder.

        Raises:
            InputError: The run is not finished, or the rows cannot be used.
        """
        return evaluate(self.folder, rows, split=split)

    def predict(self, rows: Rows | str | os.PathLike[str], *, split: str | None = None) -> list[dict[str, Any]]:
        """Return what the result says of rows, in their order; see `modelzoo.predict`.

        Args:
            rows: Rows, a file, or the name of a data set.
            split: Which part of a data set or folder.

        Raises:
            InputError: The run is not finished, or the rows cannot be used.
        """
        return predict(self.folder, rows, split=split)

    def export(self, folder: str | os.PathLike[str], *, verified: bool = False) -> Path:
        """Write the result as a plain Hugging Face folder elsewhere, and return it; an existing folder is never touched.

        An adapter is put into the weights of its base.

        Args:
            folder: New.
            verified: Whether transformers then loads it and both are compared on one batch, in logits and gradients.

        Raises:
            InputError: The run is not finished.
            SaveError: The folder exists, or cannot be written.
            CheckpointError: transformers does not load it strictly, or differs from modelzoo by more than 1e-5.
        """
        target = Path(folder)
        if (self.final / "adapter_config.json").is_file():
            write_merged(self.final, target)
        else:
            copy_folder(self.final, target)
        if verified:
            found = verify(target, local_files_only=True)
            if not (found.is_equal and found.is_strict):
                raise CheckpointError(
                    f"{target}: expected transformers to load it and to agree within {found.tolerance:g}; found "
                    f"{max(found.outputs.values()):.1e} in outputs, {found.gradient:.1e} in gradients, missing {found.missing}, "
                    f"not used {found.unexpected}"
                )
        return target

    def resume(self, *, progress: Progress | None = None, **changes: object) -> "Run":
        """Continue from the newest complete checkpoint, as if it had never stopped, and return this run.

        Args:
            progress: Hears of every step; by default as in `train`.
            **changes: Settings that decide nothing about the result (layout, tiers, places, output), as of `settings`; the run
                keeps them.

        Raises:
            ConfigError: A change decides about the result.
            CheckpointError: Settings or data are not those of the checkpoint.
            InputError: Another process works in the folder.
        """
        resume_run(self.folder, progress=progress, changes=changes)
        return self


def settings(recipe: str | os.PathLike[str] | RunSettings | None = None, **changes: object) -> RunSettings:
    """Return the checked settings of a run.

    Args:
        recipe: Name of a recipe, a YAML file, or settings to change, which stay as they are; None for the defaults.
        **changes: Sections as mappings (train={"epochs": 1}), model="FOLDER", or Hugging Face's names (learning_rate=1e-4); the
            keys are those of `modelzoo explain`.

    Raises:
        ConfigError: Something is wrong; the message lists every problem.
    """
    if recipe is None or isinstance(recipe, RunSettings):
        return change_settings(recipe, changes)
    return load_settings(os.fspath(recipe), changes)


def train(
    recipe: str | os.PathLike[str] | RunSettings | None = None, *, progress: Progress | None = None, **changes: object
) -> Run:
    """Train, evaluate and save; under torchrun every process calls it. Returns the run, finished or saved in the middle (Ctrl-C).

    With parallel.ranks above 1 that many processes are started, as the command does: this one may have used torch before, as in a
    notebook, and cannot become several. `progress` then hears what they say as notes.

    Args:
        recipe: As of `settings`.
        progress: Hears of every step on rank 0; by default a live line on a terminal and log lines elsewhere.
        **changes: As of `settings`.

    Raises:
        InputError: Something that was given cannot be used; nothing was written.
        NonFiniteError: A loss or a gradient was NaN or infinite; the last checkpoint is of a good step.
        SaveError: Something could not be written; earlier checkpoints are intact.
        RankError: A process was lost, or disagrees with the others.
    """
    file: Path | None = None
    if recipe is None or isinstance(recipe, RunSettings):
        chosen = change_settings(recipe, changes)
    else:
        resolved = resolve_settings(os.fspath(recipe), changes)
        chosen, file = resolved.settings, resolved.file
    if (chosen.parallel.ranks or 1) > 1 and not is_started(os.environ):
        return Run(_train_on_ranks(chosen, progress))
    return Run(start_run(chosen, progress=progress, recipe_file=file).folder)


def _train_on_ranks(chosen: RunSettings, progress: Progress | None) -> Path:
    """Start the processes that settings ask for, and return the folder of their run."""
    shown = progress or (choose_progress(chosen.output.log_every_s) if is_notebook() else None)
    try:
        return train_on_ranks(dump_settings(chosen), chosen.parallel.ranks or 1, hears=None if shown is None else shown.note)
    finally:
        if shown is not None:
            shown.close()


def resume(folder: str | os.PathLike[str], *, progress: Progress | None = None, **changes: object) -> Run:
    """Continue a run from its newest complete checkpoint, as if it had never stopped; any number of processes may do it.

    Args:
        folder: Of the run.
        progress: As of `train`.
        **changes: As of `Run.resume`.

    Raises:
        ConfigError: A change decides about the result.
        CheckpointError: Settings or data are not those of the checkpoint; the message shows both.
        InputError: It is not the folder of a run, or another process works in it.
    """
    return Run(folder).resume(progress=progress, **changes)


def plan_training(
    settings: RunSettings, *, ranks: int | None = None, machine: Machine | str = "this", task: Task | None = None
) -> TrainingPlan:
    """Plan a run before anything is allocated: no weight is read and nothing is fetched.

    Where model and data are on this machine, the first 10,000 training rows are read for their lengths; else the model's
    config.json is enough, and every row is taken as long as data.max_length allows.

    Args:
        settings: Of the run.
        ranks: Processes; None for parallel.ranks, or one.
        machine: What it is to run on: "this", a known one (`modelzoo.plan.KNOWN`), a YAML file of figures, or what `find_machine`
            and `probe` return.
        task: Another head than model.task, for which the rows are not read.

    Raises:
        ConfigError: The layout does not fit the ranks, or the machine is not known.
        CheckpointError: The model has no config.
    """
    rows = row_lengths(settings) if task is None else RowLengths(None, f"those of the recipe are for {settings.model.task}")
    return plan_settings(settings, ranks=ranks, machine=machine, task=task, lengths=rows.tokens, rows=rows.text)
