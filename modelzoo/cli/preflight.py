"""Everything about a recipe that can be found wrong before it runs, all at once: nothing is trained and nothing is written."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modelzoo.cli.doctor import Finding, examine
from modelzoo.errors import ModelZooError

if TYPE_CHECKING:
    from modelzoo.config import RunSettings
    from modelzoo.config.schema import DataSettings
    from modelzoo.training.preparation import Prepared

__all__ = ["preflight"]

MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


def preflight(settings: "RunSettings") -> Iterator[Finding]:
    """Yield what was looked at: ok, a note, or a problem that would stop the run.

    Args:
        settings: Of the run; that they agree with each other was checked when they were read.
    """
    yield Finding("settings", f"recipe {settings.recipe}: every key is known, every value in its range")
    yield from (finding for finding in examine(Path.cwd()) if finding.level != "ok")
    yield _output(settings)
    yield from _trackers(settings)
    folder, finding = _model_folder(settings)
    yield finding
    if folder is None:
        return
    local = _at(settings, name=str(folder)) if not Path(settings.model.name).is_dir() else settings
    from modelzoo.training.image_runs import reads_images

    prepared, problems = _prepared(local)
    yield from problems
    if prepared is not None:
        yield from _data(local, prepared)
        if not reads_images(prepared.pretrained.folder):
            yield from _tokenizer(prepared)
        yield from _plan(settings, prepared)


def _output(settings: "RunSettings") -> Finding:
    """Say whether the folder of the run can be made."""
    folder = Path(settings.output.folder).expanduser().absolute()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir():
        return Finding("output", f"{place} is a file", "problem", "set output.folder to a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("output", f"{place} cannot be written", "problem", "set output.folder to a folder of yours")
    return Finding("output", f"{folder} can be written")


def _trackers(settings: "RunSettings") -> Iterator[Finding]:
    for name in getattr(settings.output, "trackers", ()):
        if importlib.util.find_spec(MODULES[name]) is None:
            yield Finding("tracker", f"{name} is not installed", "note", f"pip install {name}; the run goes on without it")
        else:
            yield Finding("tracker", name)


def _model_folder(settings: "RunSettings") -> tuple[Path | None, Finding]:
    """Return the model's folder with its small files at least; access to the hub is asked for here, before anything is fetched."""
    from modelzoo import hub

    name = settings.model.name
    try:
        folder = hub.resolve(name, revision=settings.model.revision, with_weights=False)
        config = hub.read_config(folder)
    except ModelZooError as error:
        return None, Finding("model", str(error), "problem", "give model=FOLDER or another hub id")
    kind = "folder" if Path(name).is_dir() else "on the hub, access granted"
    return folder, Finding("model", f"{name} ({kind}): {config.get('model_type', 'no model_type')}")


def _prepared(settings: "RunSettings") -> tuple["Prepared | None", list[Finding]]:
    """Read and tokenize all data as the run will; where that fails, look at each split alone, so that all is said at once."""
    from modelzoo.training.preparation import prepare

    try:
        return prepare(settings), []
    except ModelZooError as error:
        messages = [str(error)]
    only_train = settings.data.model_copy(update={"validation": None, "test": None})
    trainable = only_train.train is None or _problem(settings, only_train, messages) is None
    for split in ("validation", "test"):
        file = getattr(settings.data, split)
        if file is not None:
            # beside training rows that can be read, whose labels it must have; else alone, in their place
            _problem(settings, only_train.model_copy(update={split: file} if trainable else {"train": file}), messages)
    return None, [Finding("data", message, "problem") for message in dict.fromkeys(messages)]


def _problem(settings: "RunSettings", data: "DataSettings", messages: list[str]) -> str | None:
    """Prepare a run with other data, and add what is wrong with them."""
    from modelzoo.training.preparation import prepare

    try:
        prepare(settings.model_copy(update={"data": data}))
    except ModelZooError as error:
        messages.append(str(error))
        return str(error)
    return None


def _data(settings: "RunSettings", prepared: "Prepared") -> Iterator[Finding]:
    """Say what became of the rows, and what of that one should know."""
    from modelzoo.report.findings import data_findings

    for note in prepared.notes:
        split, _, text = note.partition(": ")
        yield Finding(split, text) if text and split in prepared.data else Finding("data", note, "note")
    for warning in prepared.warnings:
        yield Finding("labels", warning, "note")
    for found in data_findings(prepared.data, settings.data.max_length):
        yield Finding("data", found.text, "note")
    for split in ("validation", "test"):
        if split in prepared.data and prepared.data[split]["fingerprint"] == prepared.data["train"]["fingerprint"]:
            yield Finding("data", f"{split}: the same rows as train", "note", "scores on rows that were trained on say little")


def _tokenizer(prepared: "Prepared") -> Iterator[Finding]:
    """Hold the tokenizer against the model; that every id and label is within the model's tables was checked row by row."""
    from modelzoo.data import load_tokenizer

    tokenizer = load_tokenizer(prepared.pretrained.folder)
    rows = prepared.pretrained.config.vocab_size
    if rows is not None and tokenizer.vocab_size > rows:
        text = f"{tokenizer.vocab_size} tokens, the model has embeddings for {rows}"
        yield Finding("tokenizer", text, "note", "no row of the data uses one of the others; texts at prediction may")
    else:
        yield Finding("tokenizer", f"{tokenizer.vocab_size} tokens, all within the model's {rows} embeddings")
    if tokenizer.eos_id is None and prepared.pretrained.task in ("causal_lm", "seq2seq_lm"):
        yield Finding(
            "tokenizer", "has no eos_token", "note", "the model cannot learn where a text ends; set it in tokenizer_config.json"
        )


def _plan(settings: "RunSettings", prepared: "Prepared") -> Iterator[Finding]:
    """Say whether memory and disk suffice, by the plan with the rows' own lengths."""
    from modelzoo.plan import find_machine, plan_run, read_parts
    from modelzoo.quantities import readable_size
    from modelzoo.training.adapting import skeleton_for_run

    try:
        machine, parts = find_machine("this"), read_parts(skeleton_for_run(settings, prepared.pretrained))
        found = plan_run(
            settings,
            parts,
            machine,
            ranks=settings.parallel.ranks or 1,
            lengths=prepared.train.lengths,
            evaluated=() if prepared.evaluation is None else prepared.evaluation.dataset.lengths,
        )
    except ModelZooError as error:
        yield Finding("plan", str(error), "problem")
        return
    for problem in found.problems:
        yield Finding("plan", problem, "problem", f"modelzoo plan {settings.recipe} shows what would fit")
    if found.fits:
        peak, disk = readable_size(found.peak_bytes), readable_size(found.checkpoint_bytes)
        text = f"peak {peak} of {machine.tier}, {disk} of disk; a step about {found.time.step:.3g} s, bound by {found.time.bound}"
        yield Finding("plan", text)


def _at(settings: "RunSettings", *, name: str) -> "RunSettings":
    """Return the settings with the model at a folder, so that no weight is fetched."""
    return settings.model_copy(update={"model": settings.model.model_copy(update={"name": name, "revision": None})})
